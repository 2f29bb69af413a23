"""An oracle for tiny problems: every placement, every order, every simple path, in exact fractions.

It works on the graph and the machine as the user gives them and shares no code with the solvers,
`dlplacer.problem.problem` or `dlplacer.problem.routes`. It reads the paper's equations 7 to 13 in the plainest way.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology


def optimal_makespan(graph: OpGraph, topology: Topology) -> Fraction | None:
    """The least makespan in seconds over all placements, orders and routes; None if no plan exists."""
    delays = {edge: _delays(topology, edge) for edge in {edge.bytes for edge in graph.edges}}
    best: Fraction | None = None
    for placement in placements(graph, topology):
        arcs: list[tuple[int, int, Fraction]] = []
        for edge in graph.edges:
            source, target = graph.index[edge.source], graph.index[edge.target]
            delay = delays[edge.bytes].get((placement[source].id, placement[target].id))
            if delay is None:
                break
            arcs.append((source, target, delay))
        else:
            found = _best_order(graph, placement, arcs, best)
            best = found if best is None or (found is not None and found < best) else best
    return best


def placements(graph: OpGraph, topology: Topology) -> Iterator[tuple[Device, ...]]:
    """Eq. 7 and 13: every placement on allowed devices that keeps groups together and fits into the memories."""
    choices = [[device for device in topology.devices if _may_run(op, device)] for op in graph.ops]
    for placement in product(*choices):
        used = {device.id: 0 for device in topology.devices}
        groups: dict[str, str] = {}
        together = True
        for op, device in zip(graph.ops, placement, strict=True):
            used[device.id] += (
                op.weight_bytes + op.gradient_bytes + op.state_bytes + op.output_bytes + op.workspace_bytes
            )
            if op.colocate is not None:
                together = together and groups.setdefault(op.colocate, device.id) == device.id
        if together and all(
            device.memory_bytes is None or used[device.id] <= device.memory_bytes for device in topology.devices
        ):
            yield placement


def _may_run(op: Op, device: Device) -> bool:
    return op.devices is None or device.id in op.devices or device.type in op.devices


def _delays(topology: Topology, size: int) -> dict[tuple[str, str], Fraction]:
    """Eq. 8, 9 and 11: the least delay over all simple paths, for every pair of devices that one joins."""
    best: dict[tuple[str, str], Fraction] = {}
    neighbours: dict[str, list[tuple[str, Fraction]]] = {}
    for link in topology.links:
        ticks = Fraction(size) / (Fraction(str(link.bytes_per_s)) * link.count) + Fraction(str(link.latency_s))
        neighbours.setdefault(link.source, []).append((link.target, ticks))
        neighbours.setdefault(link.target, []).append((link.source, ticks))

    def walk(start: str, here: str, seen: frozenset[str], spent: Fraction) -> None:
        pair = start, here
        best[pair] = min(best.get(pair, spent), spent)
        for there, delay in neighbours.get(here, ()):
            if there not in seen:
                walk(start, there, seen | {there}, spent + delay)

    for device in topology.devices:
        walk(device.id, device.id, frozenset([device.id]), Fraction(0))
    return best


def _best_order(
    graph: OpGraph,
    placement: tuple[Device, ...],
    arcs: list[tuple[int, int, Fraction]],
    cutoff: Fraction | None,
) -> Fraction | None:
    """Eq. 10 and 12: the least makespan over all orders that lets each op start as soon as the order allows.

    Ops are appended in every order that respects the edges; an op never starts before one appended earlier on its
    device has ended, so none overlaps and none of zero time lies inside another.
    """
    count = len(graph.ops)
    times = [_seconds(op, device) for op, device in zip(graph.ops, placement, strict=True)]
    inputs = [[(source, delay) for source, target, delay in arcs if target == op] for op in range(count)]
    best = cutoff

    def append(done: dict[int, Fraction], free: dict[str, Fraction], latest: Fraction) -> None:
        nonlocal best
        if best is not None and latest >= best:
            return
        if len(done) == count:
            best = latest
            return
        for op in range(count):
            if op in done or any(source not in done for source, _ in inputs[op]):
                continue
            here = placement[op].id
            start = max([free.get(here, Fraction(0)), *(done[source] + delay for source, delay in inputs[op])])
            end = start + times[op]
            append({**done, op: end}, {**free, here: end}, max(latest, end))

    append({}, {}, Fraction(0))
    return best


def _seconds(op: Op, device: Device) -> Fraction:
    time_s = op.time_s[device.type] if isinstance(op.time_s, dict) else op.time_s
    return Fraction(str(time_s))
