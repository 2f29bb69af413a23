"""The transfers between devices: one for a tensor with all its readers, or for every edge.

`dlplacer.problem.route_table` says on which links, and for how long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dlplacer.problem.problem import Arc, Problem
from dlplacer.problem.route_table import RouteTable, TimedRoute


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A unit of sending: a tensor with all its readers, or an edge if every edge has a transfer of its own.

    Attributes
    ----------
    size
        Position of its bytes in `Problem.sizes_bytes`.
    readers
        The ops that wait for it.
    keepers
        All readers of its tensor: a copy stays on a device until the last of them there has ended.
    """

    tensor: str = field(compare=False)
    source: int
    size: int
    readers: tuple[int, ...]
    keepers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScheduledTransfer:
    """A transfer request on its way to a device: one start tick per route segment."""

    request: int
    target: int
    route: TimedRoute
    start: tuple[int, ...]

    @property
    def end(self) -> int:
        """The tick of the arrival."""
        return self.start[-1] + self.route[-1].ticks


@dataclass(frozen=True)
class Traffic:
    """The transfers that are needed if readers are elsewhere.

    Attributes
    ----------
    requests
        Everything that is read.
    reads
        [op] → numbers of the requests that it reads.
    """

    routes: RouteTable
    requests: tuple[TransferRequest, ...]
    reads: tuple[tuple[int, ...], ...]


def build_traffic(problem: Problem) -> Traffic:
    """The traffic of a problem."""
    return traffic_of(RouteTable(problem), transfer_requests(problem), problem.op_count)


def traffic_of(routes: RouteTable, requests: Iterable[TransferRequest], op_count: int) -> Traffic:
    """The traffic of some transfer requests among as many ops."""
    reads: list[list[int]] = [[] for _ in range(op_count)]
    kept = tuple(requests)
    for number, request in enumerate(kept):
        for reader in request.readers:
            reads[reader].append(number)
    return Traffic(routes, kept, tuple(map(tuple, reads)))


def transfer_requests(problem: Problem) -> tuple[TransferRequest, ...]:
    """Everything that is read in a problem."""
    if transfer_requests not in problem.derived:
        problem.derived[transfer_requests] = _transfer_requests(problem)
    return problem.derived[transfer_requests]  # type: ignore[no-any-return]


def _transfer_requests(problem: Problem) -> tuple[TransferRequest, ...]:
    arcs_of: dict[str, list[Arc]] = {}
    for edge, arc in zip(problem.graph.edges, problem.arcs, strict=True):
        arcs_of.setdefault(edge.tensor, []).append(arc)
    keepers = {tensor: tuple(dict.fromkeys([arc.target for arc in arcs])) for tensor, arcs in arcs_of.items()}
    if problem.options.transfers == "device":
        sent = [(tensor, arcs[0], keepers[tensor]) for tensor, arcs in arcs_of.items()]
    else:
        edges = zip(problem.graph.edges, problem.arcs, strict=True)
        sent = [(edge.tensor, arc, (arc.target,)) for edge, arc in edges]
    return tuple(
        TransferRequest(tensor, first.source, first.size, readers, keepers[tensor]) for tensor, first, readers in sent
    )
