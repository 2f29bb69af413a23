"""The optimum of tiny problems whose processes issue ops ahead, by every placement, route, order and delay.

It shares nothing with the package but the graph and the machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from problem.naive_issues import calls_of, naive_issues
from solvers.brute_force_options import Activity, Sent, optimum_under

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

Orders = tuple[tuple[str, ...], ...]


def naive_issue_optimum(graph: OpGraph, topology: Topology, options: Options) -> Fraction | None:
    """The least makespan in seconds, or None if no plan exists."""

    def variants(
        placement: tuple[Device, ...], activities: list[Activity], sent: list[Sent]
    ) -> Iterator[list[Activity]]:
        for orders in _orders(graph, topology, options, placement):
            yield _issued(graph, topology, options, placement, orders, activities, sent)

    return optimum_under(graph, topology, options, variants)


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


def _issued(
    graph: OpGraph,
    topology: Topology,
    options: Options,
    placement: tuple[Device, ...],
    orders: Orders,
    activities: list[Activity],
    sent: list[Sent],
) -> list[Activity]:
    """The activities in an order on each device, none before its process has issued it.

    What is behind the barrier is issued anew when that has passed.
    """
    index, behind = graph.index, _behind(graph, options)
    at = {op.id: here.id for op, here in zip(graph.ops, placement, strict=True)}
    ahead = tuple(index[op] for op in at if op not in behind)
    issued: dict[tuple[str, object], int] = {}
    received: dict[str, set[str]] = {device.id: set() for device in topology.devices}
    for late in (False, True):
        calls = []
        for device, order in zip(topology.devices, orders, strict=True):
            each_s = int(device.dispatch_s or 0)
            ops = [(op, each_s if activities[index[op]].time_s else None) for op in order if (op in behind) == late]
            calls.append(calls_of(ops, device.id, at, graph.edges, each_s, received[device.id]))
        issued |= naive_issues(calls, [device.process or ("own", device.id) for device in topology.devices])
    gated = list(activities)

    def gate(number: int, op: str, call: tuple[str, object]) -> None:
        release_s, since = Fraction(issued.get(call, 0)), ahead if op in behind else ()
        gated[number] = replace(gated[number], release_s=release_s, since=since)

    for order in orders:
        for place, op in enumerate(order):
            gate(index[op], op, ("op", op))
            if place:
                here = gated[index[op]]
                gated[index[op]] = replace(here, after=(*here.after, index[order[place - 1]]))
    for each in sent:
        gate(each.parts[0][0], graph.ops[each.source].id, ("send", (each.tensor, each.target)))
    return gated
