"""The optimum of tiny problems whose processes issue ops ahead, by every placement and every order.

Links are not contended and memory is a sum. It shares nothing with the package but the graph and the machine.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from problem.naive_issues import calls_of, naive_issues
from solvers.brute_force import placements
from solvers.brute_force_options import least_delay_s

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

Orders = tuple[tuple[str, ...], ...]


def naive_issue_optimum(graph: OpGraph, topology: Topology, options: Options) -> Fraction | None:
    """The least makespan in seconds, or None if no plan exists."""
    lengths = [
        length
        for placement in placements(graph, topology)
        for orders in _orders(graph, topology, options, placement)
        if (length := _length(graph, topology, options, placement, orders)) is not None
    ]
    return min(lengths, default=None)


def _behind(graph: OpGraph, options: Options) -> set[str]:
    late = ("backward", "optimizer") if options.step == "autograd" else ()
    return {op.id for op in graph.ops if op.phase in late}


def _orders(graph: OpGraph, topology: Topology, options: Options, placement: Sequence[Device]) -> set[Orders]:
    """The orders on all devices that some order of all ops leads to."""
    behind, at = _behind(graph, options), {op.id: here.id for op, here in zip(graph.ops, placement, strict=True)}
    reads = {op.id: {edge.source for edge in graph.edges_into[op.id]} for op in graph.ops}
    for op in behind:
        reads[op] |= {other.id for other in graph.ops if other.id not in behind}

    def runs(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(done) == len(graph.ops):
            yield done
        for op in reads:
            if op not in done and reads[op] <= set(done):
                yield from runs((*done, op))

    return {tuple(tuple(op for op in run if at[op] == device.id) for device in topology.devices) for run in runs(())}


def _length(
    graph: OpGraph, topology: Topology, options: Options, placement: Sequence[Device], orders: Orders
) -> Fraction | None:
    """When the last op ends if all start as early as they can; None where no route leads."""
    here = {op.id: device for op, device in zip(graph.ops, placement, strict=True)}
    at = {op: device.id for op, device in here.items()}
    time_s = {op.id: int(op.time_on(here[op.id].type) or 0) for op in graph.ops}
    behind = _behind(graph, options)
    issued: dict[tuple[str, object], int] = {}
    received: dict[str, set[str]] = {device.id: set() for device in topology.devices}
    for late in (False, True):
        calls = []
        for device, order in zip(topology.devices, orders, strict=True):
            each_s = int(device.dispatch_s or 0)
            ops = [(op, each_s if time_s[op] else None) for op in order if (op in behind) == late]
            calls.append(calls_of(ops, device.id, at, graph.edges, each_s, received[device.id]))
        issued |= naive_issues(calls, [device.process or ("own", device.id) for device in topology.devices])
    travel: dict[tuple[str, str, str], Fraction] = {}
    for edge in graph.edges:
        if at[edge.source] != at[edge.target]:
            delay_s = least_delay_s(topology, options, at[edge.source], at[edge.target], edge.bytes)
            if delay_s is None:
                return None
            travel[_name(edge)] = delay_s
    end: dict[str, Fraction] = {}
    before = {order[place]: order[place - 1] for order in orders for place in range(1, len(order))}
    barrier: Fraction | None = None
    while len(end) < len(time_s):
        for op in time_s:
            waits = {edge.source for edge in graph.edges_into[op]} | ({before[op]} if op in before else set())
            if op in end or not waits <= end.keys():
                continue
            if op in behind:
                if not all(other in end for other in time_s if other not in behind):
                    continue
                barrier = max((end[other] for other in time_s if other not in behind), default=Fraction(0))
            passed = barrier or Fraction(0)
            ready = [Fraction(issued.get(("op", op), 0)) + (passed if op in behind else 0)]
            ready += [end[before[op]]] if op in before else []
            for edge in graph.edges_into[op]:
                leaves = end[edge.source]
                if _name(edge) in travel:
                    sent = issued.get(("send", (edge.tensor, at[op])), 0)
                    leaves = max(leaves, sent + (passed if edge.source in behind else 0)) + travel[_name(edge)]
                ready.append(leaves)
            end[op] = max(ready) + time_s[op]
    return max(end.values())


def _name(edge: Edge) -> tuple[str, str, str]:
    return edge.source, edge.target, edge.tensor
