"""The optimum of tiny problems whose processes issue ops ahead, by every placement and every order.

Links are not contended and memory is a sum. It shares nothing with the package but the graph and the machine.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from problem.naive_issues import naive_issues
from solvers.brute_force import placements
from solvers.brute_force_options import least_delay_s

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

Order = tuple[str, ...]


def naive_issue_optimum(graph: OpGraph, topology: Topology, options: Options) -> Fraction | None:
    """The least makespan in seconds, or None if no plan exists."""
    orders = list(_orders(graph, _behind(graph, options)))
    lengths = [
        length
        for placement in placements(graph, topology)
        if (travel := _travel(graph, topology, options, placement)) is not None
        for length in _lengths(graph, options, placement, orders, travel)
    ]
    return min(lengths, default=None)


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


def _travel(graph: OpGraph, topology: Topology, options: Options, placement: Sequence[Device]) -> list[Fraction] | None:
    """[edge] → seconds from device to device; None where no route leads."""
    at = {op.id: device.id for op, device in zip(graph.ops, placement, strict=True)}
    found = []
    for edge in graph.edges:
        delay_s: Fraction | None = Fraction(0)
        if at[edge.source] != at[edge.target]:
            delay_s = least_delay_s(topology, options, at[edge.source], at[edge.target], edge.bytes)
        if delay_s is None:
            return None
        found.append(delay_s)
    return found


def _lengths(
    graph: OpGraph, options: Options, placement: Sequence[Device], orders: Sequence[Order], travel: Sequence[Fraction]
) -> Iterator[Fraction]:
    """When the last op ends if all are issued, and start on their devices, in an order and as early as they can."""
    here = {op.id: device for op, device in zip(graph.ops, placement, strict=True)}
    time_s = {op.id: int(op.time_on(here[op.id].type) or 0) for op in graph.ops}
    process = {op: device.process or ("own", device.id) for op, device in here.items()}
    at = {op: device.id for op, device in here.items()}
    behind, seen = _behind(graph, options), set()
    reads: dict[str, list[tuple[str, Fraction]]] = {op: [] for op in here}
    for edge, delay_s in zip(graph.edges, travel, strict=True):
        reads[edge.target].append((edge.source, delay_s))
    for order in orders:
        # What neither shares a device nor a process may change places.
        key = frozenset(
            tuple(op for op in order if owner[op] == one) for owner in (at, process) for one in owner.values()
        )
        if key in seen:
            continue
        seen.add(key)
        issued = naive_issues(
            (op, (process[op], op in behind), int(here[op].dispatch_s or 0)) for op in order if time_s[op]
        )
        end: dict[str, Fraction] = {}
        free: dict[str, Fraction] = {}
        barrier = Fraction(0)
        for op in order:
            begin = issued.get(op, 0) + (barrier if op in behind else 0)
            ready = [end[source] + delay_s for source, delay_s in reads[op]]
            end[op] = max([Fraction(begin), free.get(at[op], Fraction(0)), *ready]) + time_s[op]
            free[at[op]] = end[op]
            barrier = barrier if op in behind else max(barrier, end[op])
        yield max(end.values())
