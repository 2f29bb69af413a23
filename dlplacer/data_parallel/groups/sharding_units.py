"""Modules whose sharded parameters are gathered together: FSDP2's units of least time."""

from dataclasses import replace
from itertools import pairwise

from dlplacer.core.graph import OpGraph
from dlplacer.data_parallel.groups.captured_chain import serial_clock
from dlplacer.data_parallel.groups.exact_groups import best_groups
from dlplacer.data_parallel.groups.group_plan import ShardingUnit
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.data_parallel.groups.message_timeline import makespan_s
from dlplacer.data_parallel.groups.parameter_uses import ParameterUses
from dlplacer.machines.costs.alpha_beta import AlphaBeta


def plan_units(
    graph: OpGraph, device_type: str, uses: ParameterUses, gather: AlphaBeta, scatter: AlphaBeta, cap_bytes: int | None
) -> tuple[tuple[ShardingUnit, ...], float]:
    """Units for both passes, and seconds of the forward pass with their gathers.

    FSDP2 has the same units forward and backward. They are the optimum of one pass, whichever makes both passes
    together shorter; backward, a unit is gathered again and its gradients are scattered.

    Parameters
    ----------
    gather, scatter
        Seconds of an all-gather and of a reduce-scatter over the bytes of the whole parameters.
    cap_bytes
        Most bytes of a unit; a module above it is a unit of its own.
    """
    if not uses.holders:
        return (), 0.0
    forward = unit_chain(graph, device_type, uses, gather, "forward")
    backward = unit_chain(graph, device_type, uses, gather + scatter, "backward")
    parameters = _by_holder(uses)

    def both_s(cuts: tuple[int, ...]) -> float:
        return makespan_s(forward, cuts) + makespan_s(backward, cuts, "backward")

    cuts = min((best_groups(forward, cap_bytes), best_groups(backward, cap_bytes)), key=both_s)
    units = tuple(
        _unit(forward.names[before:last], parameters, forward.bytes[before:last])
        for before, last in pairwise((0, *cuts))
    )
    return units, makespan_s(forward, cuts)


def _unit(paths: tuple[str, ...], parameters: dict[str, list[str]], sizes: tuple[int, ...]) -> ShardingUnit:
    """One message: a module inside another of the same unit comes along with that."""
    outer = tuple(path for path in paths if not any(_contains(other, path) for other in paths))
    return ShardingUnit(outer, tuple(name for path in paths for name in parameters[path]), sum(sizes))


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(f"{outer}."))


def _by_holder(uses: ParameterUses) -> dict[str, list[str]]:
    """Holder → its parameters, in the order of the calls."""
    found: dict[str, list[str]] = {path: [] for path in uses.calls}
    for name, path in uses.holders.items():
        found.setdefault(path, []).append(name)
    return found


def unit_chain(graph: OpGraph, device_type: str, uses: ParameterUses, line: AlphaBeta, direction: str) -> LayerChain:
    """Modules in the order of their calls; one computes from its first use of a parameter to that of the next."""
    parameters = _by_holder(uses)
    clock_s = serial_clock(graph, device_type, "forward")
    end_s = max(end for _, end in clock_s.values())
    starts_s = []
    for names in parameters.values():
        reads = (edge.target for name in names if name in graph.index for edge in graph.edges_from[name])
        starts_s.append(min((clock_s[op][0] for op in reads if op in clock_s), default=end_s))
    # A module is called before those inside it, whatever it computes after them.
    for number in reversed(range(len(starts_s) - 1)):
        starts_s[number] = min(starts_s[number], starts_s[number + 1])
    starts_s[0] = 0.0
    sizes = tuple(
        sum(graph.op(name).weight_bytes for name in names if name in graph.index) for names in parameters.values()
    )
    computes_s = tuple(after - before for before, after in pairwise((*starts_s, end_s)))
    transfers_s = tuple(line.s_per_byte * size for size in sizes)
    chain = LayerChain(line.latency_s, transfers_s, computes_s, sizes, tuple(parameters), _dtypes(graph, parameters))
    if direction == "forward":
        return chain
    # Backward passes over the modules in reverse, each in its share of the time.
    backward_s = max((end for _, end in serial_clock(graph, device_type, "backward").values()), default=0.0)
    scale = backward_s / end_s if end_s else 0.0
    return replace(chain, compute_s=tuple(scale * time_s for time_s in computes_s))


def _dtypes(graph: OpGraph, parameters: dict[str, list[str]]) -> tuple[str, ...]:
    """Of every module's parameters: FSDP2 gathers one dtype in a message."""
    return tuple(
        "/".join(sorted({graph.op(name).outputs[0].dtype for name in names if name in graph.index}))
        for names in parameters.values()
    )
