"""The optimum of tiny problems whose processes issue ops ahead, by every placement, route, order and delay.

It shares nothing with the package but the graph and the machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from problem.naive_issues import naive_issues
from solvers.brute_force_options import Activity, Sent, optimum_under

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

Order = tuple[str, ...]


def naive_issue_optimum(graph: OpGraph, topology: Topology, options: Options) -> Fraction | None:
    """The least makespan in seconds, or None if no plan exists."""
    behind = _behind(graph, options)
    orders = list(_orders(graph, behind))

    def variants(placement: tuple[Device, ...], activities: list[Activity], _: list[Sent]) -> Iterator[list[Activity]]:
        return _issued(graph, behind, [topology.device(each.id) for each in placement], orders, activities)

    return optimum_under(graph, topology, options, variants)


def _behind(graph: OpGraph, options: Options) -> set[str]:
    late = ("backward", "optimizer") if options.step == "autograd" else ()
    return {op.id for op in graph.ops if op.phase in late}


def _orders(graph: OpGraph, behind: set[str]) -> Iterator[Order]:
    """Every order in which all ops can start."""
    reads = {op.id: {edge.source for edge in graph.edges_into[op.id]} for op in graph.ops}
    for op in behind:
        reads[op] |= {other.id for other in graph.ops if other.id not in behind}

    def runs(done: Order) -> Iterator[Order]:
        if len(done) == len(graph.ops):
            yield done
        for op in reads:
            if op not in done and reads[op] <= set(done):
                yield from runs((*done, op))

    return runs(())


def _issued(
    graph: OpGraph, behind: set[str], placement: Sequence[Device], orders: list[Order], activities: list[Activity]
) -> Iterator[list[Activity]]:
    """The activities if all ops are issued, and start on their devices, in an order: each order that differs.

    What is behind the barrier is issued anew when that has passed.
    """
    index, here = graph.index, {op.id: device for op, device in zip(graph.ops, placement, strict=True)}
    process = {op: device.process or ("own", device.id) for op, device in here.items()}
    ahead, seen = tuple(index[op] for op in here if op not in behind), set()
    for order in orders:
        # What neither shares a device nor a process may change places.
        owners = {op: here[op].id for op in order}, process
        key = frozenset(tuple(op for op in order if own[op] == one) for own in owners for one in own.values())
        if key in seen:
            continue
        seen.add(key)
        issued = naive_issues(
            (op, (process[op], op in behind), int(here[op].dispatch_s or 0))
            for op in order
            if activities[index[op]].time_s
        )
        gated, last = list(activities), dict[str, int]()
        for op in order:
            mine, release_s = gated[index[op]], Fraction(issued.get(op, 0))
            after = (*mine.after, *(last[device] for device in [here[op].id] if device in last))
            since = ahead if op in behind else ()
            gated[index[op]] = replace(mine, after=after, release_s=release_s, since=since)
            last[here[op].id] = index[op]
        yield gated
