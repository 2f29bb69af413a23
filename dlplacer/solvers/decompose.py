"""Series decomposition: the segments between cut ops solved one by one, and put together again.

The sum of the segments' bounds bounds the whole. Where all devices can be swapped, memory does not bind and nothing
but the chain of cut ops joins the segments, their best timetables also fit together, and the sum is the optimum. In all
other cases what is put together is only a candidate, whose true makespan counts.
"""

import time
from collections.abc import Callable

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

Search = Callable[[Segment, Bounds, Incumbent], None]
"""Improves a segment's incumbent until its budget is spent."""

_BOUND_SECONDS = 0.5
_LARGEST = 200


class Chain:
    """The segments of what leads to one op, and how far each of them is solved; equal segments are solved once.

    Segments of very many ops are not searched.
    """

    def __init__(self, instance: Instance, last: int, budget: Budget) -> None:
        self.instance, self.budget = instance, budget
        self.segments = find_segments(instance, last)
        self.bounds: dict[Instance, Bounds] = {}
        self.incumbents: dict[Instance, Incumbent] = {}
        for segment in self.segments:
            if segment.instance not in self.incumbents:
                self._begin(segment.instance)

    @property
    def open(self) -> list[Segment]:
        """The segments whose best timetables are not proven yet, each once, the widest open first."""
        distinct = {segment.instance: segment for segment in self.segments if len(segment.ops) <= _LARGEST}
        unproven = [segment for segment in distinct.values() if not self.incumbents[segment.instance].closed]
        return sorted(unproven, key=lambda segment: -self._width(segment))

    def advance(self, seconds: float, stop_at: float, search: Search) -> None:
        """Spend some time on every open segment, until a moment of `time.monotonic`."""
        for segment in self.open:
            left = min(seconds, stop_at - time.monotonic(), self.budget.left_s)
            if left <= 0:
                return
            incumbent = self.incumbents[segment.instance]
            incumbent.budget = self._budget(left)
            search(segment, self.bounds[segment.instance], incumbent)

    def raised(self, bounds: Bounds, seconds: float) -> Bounds:
        """Bounds of the whole, with the heads of cut ops raised by the segments before them.

        Proof: a segment's ops run between the starts of its cut ops, so these are at least its bound apart.
        """
        head = list(bounds.head)
        for segment in self.segments:
            first, last = segment.ops[0], segment.ops[-1]
            begin = 0 if segment.begins else head[first]
            head[last] = max(head[last], begin + self.incumbents[segment.instance].bound)
        return lower_bounds(self.instance, seconds, head, bounds.tail)

    def candidates(self) -> list[Timetable]:
        """Timetables of the whole: the segments' best in a row, devices swapped so that cut ops agree.

        Ops outside the segments are decided by the list rule, once after those of the segments and once among them.
        """
        instance, classes = self.instance, interchangeable(self.instance)
        site = [-1] * len(instance.members)
        place: dict[int, float] = {}
        offset = 0
        for segment in self.segments:
            timetable = self.incumbents[segment.instance].best
            if timetable is None:
                return []
            name = list(range(instance.device_count))
            here, there = timetable.device[0], site[instance.block[segment.ops[0]]]
            if there >= 0 and any(here in members and there in members for members in classes):
                name[here], name[there] = there, here
            for op, device, start in zip(segment.ops, timetable.device, timetable.start, strict=True):
                if site[instance.block[op]] < 0:
                    site[instance.block[op]] = name[device]
                place.setdefault(op, offset + start)
            offset += timetable.makespan
        ranks = upward_ranks(instance)
        late = [-place[op] if op in place else rank - offset - max(ranks) for op, rank in enumerate(ranks)]
        found = [list_schedule(instance, by_rank(instance, priority), site) for priority in (late, ranks)]
        return [timetable for timetable in found if timetable is not None]

    def _begin(self, instance: Instance) -> None:
        incumbent = Incumbent(self._budget(self.budget.left_s))
        for rule in (list_schedule, heft):
            incumbent.offer(construct(instance, rule))
        self.bounds[instance] = lower_bounds(instance, _BOUND_SECONDS)
        incumbent.raise_bound(self.bounds[instance].makespan)
        self.incumbents[instance] = incumbent

    def _budget(self, seconds: float) -> Budget:
        return Budget(
            time.monotonic() + seconds, seed=self.budget.seed, workers=self.budget.workers, stop=self.budget.stop
        )

    def _width(self, segment: Segment) -> int:
        incumbent = self.incumbents[segment.instance]
        return 0 if incumbent.best is None else incumbent.best.makespan - incumbent.bound
