"""Other graphs: long ops twice as fast or in two halves, and coarser ops."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.planning.coarsen.granularity import FINEST, GRANULARITIES, coarsen
from dlplacer.planning.what_if.change import Change

_LONGEST = 10


def longest_ops(plan: Plan, count: int = _LONGEST) -> list[Op]:
    """The ops that take longest in the plan, the longest first; none that takes no time."""
    entries = sorted(plan.ops, key=lambda entry: entry.start_s - entry.end_s)[:count]
    return [plan.graph.op(entry.op) for entry in entries if entry.end_s > entry.start_s]


def faster_ops(plan: Plan) -> Iterator[Change]:
    """Each of the longest ops in half its time."""
    for op in longest_ops(plan):
        yield Change("op", f"{_named(op)} twice as fast", partial(_with_faster, plan, op))


def split_ops(plan: Plan) -> Iterator[Change]:
    """Each of the longest ops in two halves that may run on two devices."""
    for op in longest_ops(plan):
        yield Change("split", f"{_named(op)} in two halves", partial(_with_halves, plan, op))


def _named(op: Op) -> str:
    return f"op {op.id} of {op.module}" if op.module else f"op {op.id}"


def coarser(plan: Plan) -> Iterator[Change]:
    """The other granularities that a graph of ATen ops has; a coarse graph has none, as its ops are gone."""
    if "granularity" in (plan.graph.capture or {}) or not any(op.module for op in plan.graph.ops):
        return
    for granularity in GRANULARITIES:
        if granularity != FINEST:
            yield Change("granularity", f"granularity {granularity}", partial(_with_granularity, plan, granularity))


def _with_granularity(plan: Plan, granularity: str) -> tuple[OpGraph, Topology]:
    return coarsen(plan.graph, granularity), plan.topology


def _with_faster(plan: Plan, op: Op) -> tuple[OpGraph, Topology]:
    ops = tuple(replace(other, time_s=_half(other.time_s)) if other is op else other for other in plan.graph.ops)
    return replace(plan.graph, ops=ops), plan.topology


def _with_halves(plan: Plan, op: Op) -> tuple[OpGraph, Topology]:
    """Two ops of half the time read all that the op reads; an op of its name, without time, joins what they make.

    What cutting and joining cost beside the transfers is left out, so the gain is the most that a split can bring.
    """
    graph = plan.graph
    names = _free(graph, op, 1), _free(graph, op, 2)
    sizes = {edge.output: edge.bytes for edge in graph.edges_from[op.id]}
    made = sum(sizes.values())
    halves = tuple(
        replace(
            op,
            id=name,
            time_s=_half(op.time_s),
            flops=op.flops / 2,
            bytes_accessed=op.bytes_accessed / 2,
            outputs=(),
            weight_bytes=0,
            gradient_bytes=0,
            state_bytes=0,
            output_bytes=op.output_bytes // 2,
            workspace_bytes=op.workspace_bytes // 2,
            colocate=None,
            origin=(op.id,),
        )
        for name in names
    )
    joined = replace(op, time_s=0.0, flops=0, bytes_accessed=0, workspace_bytes=0)
    ops = tuple(part for other in graph.ops for part in ((*halves, joined) if other is op else (other,)))
    edges = [edge for edge in graph.edges if edge.target != op.id]
    edges += [replace(edge, target=name) for edge in graph.edges_into[op.id] for name in names]
    edges += [Edge(name, op.id, made // 2) for name in names]
    return replace(graph, ops=ops, edges=tuple(edges), structure_sha256=None), plan.topology


def _free(graph: OpGraph, op: Op, number: int) -> str:
    name = f"{op.id}/half{number}"
    while name in graph.index:
        name += "'"
    return name


def _half(time_s: float | Mapping[str, float] | None) -> float | Mapping[str, float] | None:
    if isinstance(time_s, Mapping):
        return {kind: value / 2 for kind, value in time_s.items()}
    return None if time_s is None else time_s / 2
