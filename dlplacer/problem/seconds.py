"""A schedule in ticks as ops and transfers in seconds."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from dlplacer.core.plan import ScheduledOp, Transfer, TransferSegment
from dlplacer.problem.dispatch import dispatch_of, issue_times
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import RouteSegment
from dlplacer.problem.routes import link_spans
from dlplacer.problem.transfers import ScheduledTransfer, transfer_requests

_MOST_PASSES = 100
"""Passes over all activities: one suffices unless ops of no time tie, each further one settles one more such tie."""


class ResourceUse(NamedTuple):
    """A disjunctive resource, a device or a link direction, in use: in ticks, and by offset and length in any unit."""

    resource: int
    from_tick: int
    to_tick: int
    offset: float
    length: float


class Activity(NamedTuple):
    """An op, a route segment of a transfer, or a moment that others wait for.

    Attributes
    ----------
    key
        Its ticks and what breaks ties: a step comes after all that it waits for.
    after
        (step, lag): it starts no earlier than so long after the start of the other.
    takes
        The device on which it takes memory, or -1.
    frees
        The devices on which something may be freed when it ends.
    release
        It starts no earlier.
    """

    key: tuple[int, ...]
    length: float
    after: tuple[tuple[int, float], ...]
    holds: tuple[ResourceUse, ...] = ()
    takes: int = -1
    frees: tuple[int, ...] = ()
    release: float = 0


def earliest(steps: Sequence[Activity], waits_for_memory: bool) -> list[float]:
    """[step] → its start, with the order of the ticks kept on every resource.

    If memory counts, a step also waits for all that had ended on its device by its tick. What is alive at a start was
    then alive at that tick, so memory suffices if it did in ticks, although things may start earlier than their ticks.
    """
    after = [list(step.after) for step in steps]
    keys = [step.key for step in steps]
    uses: dict[int, list[tuple[int, int, tuple[int, ...], int, ResourceUse]]] = {}
    for number, step in enumerate(steps):
        for hold in step.holds:
            # Rounding may put a use that takes no time a tick behind the end of its step, where a step that waits for
            # it has begun: so uses would follow each other in a circle.
            ticks = min(hold.from_tick, step.key[1]), min(hold.to_tick, step.key[1])
            uses.setdefault(hold.resource, []).append((*ticks, step.key, number, hold))
    for resource in uses.values():
        # Numbers of steps are distinct, unless a step uses a resource twice: then order in the list decides.
        resource.sort(key=itemgetter(0, 1, 2, 3))
        for (_, _, _, first, before), (_, _, _, second, behind) in pairwise(resource):
            after[second].append((first, before.offset + before.length - behind.offset))
    order = sorted(range(len(steps)), key=keys.__getitem__)
    start = [step.release + 0 * step.length for step in steps]
    place = [0] * len(steps)
    for position, number in enumerate(order):
        place[number] = position
    in_turn = all(place[other] < here for here, entries in zip(place, after, strict=True) for other, _ in entries)
    for _ in range(1 if in_turn else _MOST_PASSES):
        changed = False
        ending_ops: dict[int, list[tuple[int, float]]] = {}
        ended: dict[int, float] = {}
        for number in order:
            step, begin = steps[number], start[number]
            for other, lag in after[number]:
                ready = start[other] + lag
                if ready > begin:
                    begin = ready
            if waits_for_memory and step.takes >= 0:
                queue = ending_ops.get(step.takes, [])
                while queue and queue[0][0] <= step.key[0]:
                    ended[step.takes] = max(ended.get(step.takes, 0), heappop(queue)[1])
                begin = max(begin, ended.get(step.takes, 0))
            changed = changed or begin > start[number]
            start[number] = begin
            for device in step.frees if waits_for_memory else ():
                heappush(ending_ops.setdefault(device, []), (step.key[1], begin + step.length))
        if not changed:
            break
    return start


def realise(
    problem: Problem, device: Sequence[int], start: Sequence[int], transfers: Sequence[ScheduledTransfer]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers in seconds, in the order of their ticks on every device, every link and every host process.

    Memory over time suffices if it does in ticks, however long ops wait for their processes: see `earliest`.

    Parameters
    ----------
    device, start
        [op] → device and tick.
    transfers
        Every transfer request that is read on another device than its producer's, once per such device.
    """
    stage = _Stage(problem, device, start, transfers)
    steps = stage.steps()
    begun = earliest(steps, problem.options.memory == "live")
    order = sorted(range(problem.op_count), key=lambda op: steps[op].key)
    names = [problem.topology.devices[here].id for here in device]
    ops = tuple(
        ScheduledOp(problem.graph.ops[op].id, names[op], begun[op], begun[op] + steps[op].length) for op in order
    )
    return ops, tuple(stage.transfers(begun, steps))


class _Stage:
    """The activities of a schedule: ops, then the barrier, then the route segments of the transfers."""

    def __init__(
        self, problem: Problem, device: Sequence[int], start: Sequence[int], transfers: Sequence[ScheduledTransfer]
    ) -> None:
        self.problem, self.device, self.start, self.sent = problem, device, start, transfers
        self.requests = transfer_requests(problem)
        self.spans_s: dict[tuple[tuple[tuple[str, str], ...], int], list[tuple[float, float]]] = {}
        self.rank = {op: position for position, op in enumerate(problem.topological)}
        kinds = [problem.topology.devices[here].type for here in device]
        self.length_s = [op.time_on(kind) or 0.0 for op, kind in zip(problem.graph.ops, kinds, strict=True)]
        self.end = [begin + (problem.duration[op][device[op]] or 0) for op, begin in enumerate(start)]
        self.dispatch = dispatch_of(problem.topology)
        by_start = sorted(range(len(start)), key=lambda op: (start[op], self.end[op], self.rank[op]))
        self.issued_s = issue_times(problem, device, by_start, self.dispatch, problem.behind_barrier)
        self.called_after = self._calls(by_start)
        self.first = list(accumulate((len(send.route) for send in transfers), initial=problem.op_count + 1))
        self.inputs: list[list[tuple[int, float]]] = [[] for _ in range(problem.op_count)]

    def steps(self) -> list[Activity]:
        """All steps; those of ops come first, at the ops' positions."""
        segments = [step for number, send in enumerate(self.sent) for step in self._segments(number, send)]
        ops = [self._op(op) for op in range(self.problem.op_count)]
        return [*ops, self._barrier(), *segments]

    def transfers(self, begun: Sequence[float], steps: Sequence[Activity]) -> Iterator[Transfer]:
        """The transfers, in the order in which they were scheduled."""
        for first, send in zip(self.first, self.sent, strict=False):
            request = self.requests[send.request]
            parts = (
                TransferSegment(segment.hops, begun[place], begun[place] + steps[place].length)
                for place, segment in enumerate(send.route, first)
            )
            yield Transfer(
                request.tensor,
                self.problem.graph.ops[request.source].id,
                self.problem.topology.devices[send.target].id,
                self.problem.sizes_bytes[request.size],
                tuple(parts),
            )

    def _op(self, op: int) -> Activity:
        here, begin, length_s = self.device[op], self.start[op], self.length_s[op]
        arcs = self.problem.arcs_into[op]
        after = [(arc.source, self.length_s[arc.source]) for arc in arcs if self.device[arc.source] == here]
        behind = op in self.problem.behind_barrier
        if behind:
            after.append((self.problem.op_count, self.issued_s[op]))
        if op in self.called_after:
            after.append(self.called_after[op])
        return Activity(
            (begin, self.end[op], self.rank[op], -1),
            length_s,
            (*after, *self.inputs[op]),
            (ResourceUse(-1 - here, begin, self.end[op], 0.0, length_s),),
            here,
            (here,),
            0.0 if behind else self.issued_s[op],
        )

    def _calls(self, by_start: Sequence[int]) -> dict[int, tuple[int, float]]:
        """Op of a core that shares its interpreter → the op whose start it follows there, and how much later."""
        shares = [self.dispatch.shares_interpreter(here) for here in range(self.problem.device_count)]
        latest: dict[int, int] = {}
        found: dict[int, tuple[int, float]] = {}
        for op in by_start:
            here = self.device[op]
            if self.length_s[op] and shares[here]:
                before = latest.get(self.dispatch.process[here])
                if before is not None and self.device[before] != here:
                    found[op] = before, self.dispatch.seconds[self.device[before]]
                latest[self.dispatch.process[here]] = op
        return found

    def _barrier(self) -> Activity:
        """The activity that ends with all ops before the barrier. It has the last rank, so ties go by dependency."""
        before = [op for op in range(self.problem.op_count) if op not in self.problem.behind_barrier]
        last = max((self.end[op] for op in before), default=0)
        rank = max((self.rank[op] for op in before), default=-1)
        return Activity((last, last, rank, 0), 0.0, tuple((op, self.length_s[op]) for op in before))

    def _segments(self, number: int, send: ScheduledTransfer) -> Iterator[Activity]:
        request = self.requests[send.request]
        here = self.device[request.source]
        before = request.source, self.length_s[request.source]
        for part, (begin, segment) in enumerate(zip(send.start, send.route, strict=True)):
            spans_s = self._spans_s(segment, self.problem.sizes_bytes[request.size])
            length_s = spans_s[-1][1]
            # Without contention a segment holds nothing.
            holds = tuple(
                ResourceUse(direction, begin + offset, begin + offset + ticks, from_s, to_s - from_s)
                for (direction, offset, ticks), (from_s, to_s) in zip(segment.holds, spans_s, strict=False)
            )
            key = begin, begin + segment.ticks, self.rank[request.source], part
            yield Activity(key, length_s, (before,), holds, segment.target, (here, segment.target))
            before, here = (self.first[number] + part, length_s), segment.target
        for reader in request.readers:
            if self.device[reader] == send.target:
                self.inputs[reader].append(before)

    def _spans_s(self, segment: RouteSegment, size_bytes: int) -> list[tuple[float, float]]:
        known = self.spans_s.get((segment.hops, size_bytes))
        if known is None:
            links = [self.problem.topology.link_between[hop] for hop in segment.hops]
            known = link_spans(links, size_bytes, self.problem.options.delay, float)
            self.spans_s[segment.hops, size_bytes] = known
        return known
