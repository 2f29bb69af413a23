"""Ops of no time contracted into a neighbour where that cannot cost anything: a smaller instance of the same optimum.

Both rules hold where transfers do not wait for each other and memory is a sum of footprints (``contention: none`` and
``memory: sum``), for any times per type, pins, groups and routes. Let v be an op of no time on all devices it may use,
whose block is a single op of no footprint (or of any, where memory does not bind) and which may run wherever its host
may; or whose block is the host's.

*After its producer*: v reads u only, and for every reader r, and all devices a, d, b, sending v's tensor from a to b
takes no longer than sending u's tensor from a to d and v's from d to b. Take any schedule, with u on a and v on d. Move
v to a, to the end of u: it occupies nothing there, and every reader, on b say, started no earlier than end(u) +
c_uv(a, d) + c_vr(d, b) ≥ end(u) + c_vr(a, b), so it still may. Hence some best schedule has v right after u.

*Before its reader*: v is read by w only, and for every producer u sending u's tensor from a to b takes no longer than
from a to d, and then v's from d to b. The same with time reversed: v moves to the start of w.

In one block v and its host share a device anyway, and no condition on delays is needed. Chains of ops that take time
are not contracted: that can cost much.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from dlplacer.solvers.decode.decode import compact, in_sequence
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Delay, Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence

Rows = list[dict[int, Delay]]
"""[op] → op at the other end → delay."""


@dataclass(frozen=True)
class Merge:
    """An op that goes with another: at its end, or at its start."""

    op: int
    host: int
    after: bool


@dataclass(frozen=True)
class Reduction:
    """A smaller instance and the way back.

    Attributes
    ----------
    kept
        Positions of the reduced instance's ops in the original.
    merges
        What was contracted, in that order.
    """

    original: Instance
    reduced: Instance
    kept: tuple[int, ...]
    merges: tuple[Merge, ...]

    def expand(self, schedule: Schedule) -> Schedule:
        """A schedule of the original that ends no later."""
        device, start = [0] * self.original.op_count, [0] * self.original.op_count
        for op, there, begin in zip(self.kept, schedule.device, schedule.start, strict=True):
            device[op], start[op] = there, begin
        for merge in reversed(self.merges):
            device[merge.op] = here = device[merge.host]
            late = self.original.duration[merge.host][here] if merge.after else 0
            start[merge.op] = start[merge.host] + late
        return compact(self.original, device, start)

    def project(self, schedule: Schedule) -> Schedule:
        """A schedule of the reduced instance that ends no later than one of the original."""
        device = [schedule.device[op] for op in self.kept]
        return in_sequence(
            self.reduced, device, sequence(self.reduced, device, [schedule.start[op] for op in self.kept])
        )


class Contracted(Incumbent):
    """The incumbent of a reduced instance; the original's incumbent hears of all that it reaches."""

    def __init__(self, found: Reduction, outer: Incumbent) -> None:
        super().__init__(outer.budget.unreported, pass_on=lambda schedule: outer.offer(found.expand(schedule)))
        self.outer, self.bound, self.found = outer, outer.bound, found
        self.follow()

    def follow(self) -> None:
        """Take over what the original's incumbent has heard from elsewhere."""
        if self.outer.best is not None:
            self.offer(self.found.project(self.outer.best))

    def raise_bound(self, bound: int) -> None:
        """Keep a lower bound if it is the highest so far; it bounds the original too."""
        super().raise_bound(bound)
        self.outer.raise_bound(bound)


def reduction(instance: Instance) -> Reduction | None:
    """The instance with everything contracted that the rules allow; None if nothing is, or if they do not hold."""
    if instance.traffic is not None:
        return None
    work = _Work(instance)
    work.run()
    if not work.merges:
        return None
    gone = {merge.op for merge in work.merges}
    kept = tuple(op for op in instance.order if op not in gone)
    return Reduction(instance, work.rebuilt(kept), kept, tuple(work.merges))


class _Work:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.readers: Rows = [dict(row) for row in instance.successors]
        self.reads: Rows = [dict(row) for row in instance.predecessors]
        self.block = list(instance.block)
        self.size = [len(ops) for ops in instance.members]
        self.footprint = list(instance.footprint)
        self.merges: list[Merge] = []
        self._pays: dict[tuple[int, int, int], bool] = {}
        self._alive: list[Delay] = []

    def run(self) -> None:
        """Contract until nothing more can be."""
        pending = list(self.instance.order)
        gone: set[int] = set()
        while pending:
            op = pending.pop()
            if op in gone:
                continue
            host = self._host(op)
            if host is not None:
                touched = [*self.readers[op], *self.reads[op]]
                self._contract(host)
                gone.add(op)
                pending += [other for other in touched if other not in gone]

    def _host(self, op: int) -> Merge | None:
        instance = self.instance
        if instance.longest[op] or op == instance.barrier:
            return None
        readers, reads = self.readers[op], self.reads[op]
        if len(reads) == 1:
            ((source, before),) = reads.items()
            routes = ((after, before, after) for after in readers.values())
            if self._may_join(op, source, routes):
                return Merge(op, source, True)
        if len(readers) == 1:
            ((target, after),) = readers.items()
            routes = ((before, before, after) for before in reads.values())
            if self._may_join(op, target, routes):
                return Merge(op, target, False)
        return None

    def _may_join(self, op: int, host: int, routes: Iterable[tuple[Delay, Delay, Delay]]) -> bool:
        instance = self.instance
        if host == instance.barrier:
            return False
        if self.block[op] == self.block[host]:
            return True
        free = self.size[self.block[op]] == 1 and not (instance.memory_binds and self.footprint[self.block[op]])
        if not free or not set(instance.allowed[host]).issubset(instance.allowed[op]):
            return False
        return all(self._never_longer(*route) for route in routes)

    def _never_longer(self, direct: Delay, first: Delay, second: Delay) -> bool:
        """True if `direct` from a to b is at most `first` from a to d plus `second` from d to b, for all devices."""
        key = id(direct), id(first), id(second)
        if key not in self._pays:
            straight, left, right = (np.array(delay, dtype=np.int64) for delay in (direct, first, second))
            around = (left[:, :, None] + right[None, :, :]).min(axis=1)
            self._pays[key] = bool((straight <= around).all())
            self._alive += [direct, first, second]
        return self._pays[key]

    def _contract(self, merge: Merge) -> None:
        op, host = merge.op, merge.host
        self.merges.append(merge)
        for mine, theirs in ((self.readers, self.reads), (self.reads, self.readers)):
            for other, delay in mine[op].items():
                del theirs[other][op]
                if other != host:
                    mine[host][other] = theirs[other][host] = _slower(mine[host].get(other), delay)
            mine[op] = {}
        old, new = self.block[op], self.block[host]
        if old == new:
            self.size[old] -= 1
        else:
            self.footprint[new] += self.footprint[old]

    def rebuilt(self, kept: tuple[int, ...]) -> Instance:
        """The instance of the ops that are left."""
        instance = self.instance
        instant = [op for op, ticks in enumerate(instance.longest) if not ticks]
        contracted = replace(
            instance,
            successors=tuple(tuple(row.items()) for row in self.readers),
            predecessors=tuple(tuple(row.items()) for row in self.reads),
            footprint=tuple(self.footprint),
            sources=frozenset(op for op in instant if not self.reads[op]),
            sinks=frozenset(op for op in instant if not self.readers[op]),
        )
        barrier = None if instance.barrier is None else kept.index(instance.barrier)
        return replace(contracted.restricted(kept), barrier=barrier)


def _slower(known: Delay | None, delay: Delay) -> Delay:
    """The larger of two delays for every pair of devices: a reader waits for both tensors."""
    if known is None or known is delay or known == delay:
        return delay
    return tuple(tuple(map(max, row, other)) for row, other in zip(known, delay, strict=True))
