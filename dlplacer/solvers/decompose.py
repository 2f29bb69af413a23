"""Series decomposition: the segments between cut ops solved one by one, and put together again.

The sum of the segments' bounds bounds the whole. Where devices can be swapped and nothing but the chain of cut ops joins
the segments, their best schedules also fit together, and the sum is the optimum; in all other cases what is put together
is only a candidate, whose true makespan counts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlplacer.solvers.bounds import Bounds, lower_bounds
from dlplacer.solvers.construct import construct
from dlplacer.solvers.heft import heft
from dlplacer.solvers.incumbent import Incumbent
from dlplacer.solvers.instance import Instance
from dlplacer.solvers.list_schedule import list_schedule
from dlplacer.solvers.ranks import by_rank, upward_ranks
from dlplacer.solvers.schedule import Budget
from dlplacer.solvers.segments import Segment, find_segments
from dlplacer.solvers.symmetry import interchangeable
from dlplacer.solvers.timetable import Timetable

Finish = Callable[[Instance, Bounds, Incumbent, bool], None]
"""Improves the incumbent of a segment by search; the flag tells whether its first and last ops are cut ops."""


@dataclass(frozen=True)
class Solved:
    """A segment with its best timetable and lower bound."""

    segment: Segment
    timetable: Timetable
    bound: int


def solve_segments(instance: Instance, last: int, budget: Budget, seconds: float, finish: Finish) -> list[Solved]:
    """Every segment of what leads to `last`, solved within the given time; equal segments are solved once."""
    segments = find_segments(instance, last)
    known: dict[Instance, tuple[Timetable, int]] = {}
    stop_at = time.monotonic() + seconds
    solved = []
    for number, segment in enumerate(segments):
        if segment.instance not in known:
            share = (stop_at - time.monotonic()) / (len(segments) - number) * 2
            known[segment.instance] = _solve(segment, budget, max(0.0, share), finish)
        timetable, bound = known[segment.instance]
        solved.append(Solved(segment, timetable, bound))
    return solved


def raised(instance: Instance, bounds: Bounds, solved: Sequence[Solved], seconds: float) -> Bounds:
    """The bounds with the heads of cut ops raised by the segments before them.

    Proof: a segment's ops run between the starts of its cut ops, so these are at least its bound apart.
    """
    head = list(bounds.head)
    for entry in solved:
        first, last = entry.segment.ops[0], entry.segment.ops[-1]
        head[last] = max(head[last], entry.bound + (0 if entry.segment.begins else head[first]))
    return lower_bounds(instance, seconds, head, bounds.tail)


def put_together(instance: Instance, solved: Sequence[Solved]) -> list[Timetable]:
    """Candidates for the whole: the segments' timetables in a row, devices swapped so that cut ops agree.

    Ops outside the segments are decided by the list rule, after those of the segments or among them.
    """
    classes = interchangeable(instance)
    site = [-1] * len(instance.members)
    place: dict[int, float] = {}
    offset = 0
    for entry in solved:
        ops, timetable = entry.segment.ops, entry.timetable
        name = list(range(instance.device_count))
        here, there = timetable.device[0], site[instance.block[ops[0]]]
        if there >= 0 and any(here in members and there in members for members in classes):
            name[here], name[there] = there, here
        for op, device, start in zip(ops, timetable.device, timetable.start, strict=True):
            if site[instance.block[op]] < 0:
                site[instance.block[op]] = name[device]
            place.setdefault(op, offset + start)
        offset += timetable.makespan
    ranks = upward_ranks(instance)
    late = [-place[op] if op in place else rank - offset - max(ranks) for op, rank in enumerate(ranks)]
    found = [list_schedule(instance, by_rank(instance, priority), site) for priority in (late, ranks)]
    return [timetable for timetable in found if timetable is not None]


def _solve(segment: Segment, budget: Budget, seconds: float, finish: Finish) -> tuple[Timetable, int]:
    instance = segment.instance
    incumbent = Incumbent(
        Budget(time.monotonic() + seconds, seed=budget.seed, workers=budget.workers, stop=budget.stop)
    )
    for rule in (list_schedule, heft):
        incumbent.offer(construct(instance, rule))
    bounds = lower_bounds(instance, 0.1 * seconds)
    incumbent.raise_bound(bounds.makespan)
    if not incumbent.closed:
        finish(instance, bounds, incumbent, not segment.begins)
    if incumbent.best is None:
        raise AssertionError
    return incumbent.best, incumbent.bound
