"""Searching parts of the machine by the same phases: a plan on some devices is a plan of the whole.

Bounds found there are none. So a machine is not worse than its parts, as far as the time goes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.errors import InfeasibleError
from dlplacer.problem.problem import Problem
from dlplacer.problem.restriction import on_devices
from dlplacer.problem.route_table import ScheduledTransfer, TimedRoute
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.feasibility import may_have_plan
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, sequence
from dlplacer.solvers.instance.time_limit import now, within
from dlplacer.solvers.starts import StartMethod, StartSearch

Delays = NDArray[np.int64]
"""[device][device] → total delay of some arcs if each crossed there and back."""


@dataclass(frozen=True)
class SubsetParams:
    """The subsets that are looked at.

    Attributes
    ----------
    sizes
        Devices of the fastest and best connected ones of a pool. Forward graphs with branches gain nothing beyond about
        three devices; 3 is for boxes of four.
    most
        Subsets in all. A guess: every one of them gets a share of the time.
    most_delays
        Of so many arcs, evenly over all, devices are told near from far; 34,000 tables for 32 devices take 1 s.
    """

    sizes: tuple[int, ...] = (2, 4, 8, 16, 3)
    most: int = 6
    most_delays: int = 2000


def device_subsets(
    problem: Problem, instance: Instance, params: SubsetParams = SubsetParams()
) -> list[tuple[int, ...]]:
    """Sets of two or more devices, ascending by size: of each pool the whole, and its fastest, best connected few.

    Pools are the machine, the devices of one type, and *islands*: devices that are nearer to each other than to the
    rest, at every level of nearness. Devices that no op may use take part in none, and those that some op cannot do
    without in all. Of sets that look the same (types, capacities, delays between them) one is kept.
    """
    key = "device_subsets", params
    if key not in problem.derived:
        problem.derived[key] = _subsets(problem, instance, params)
    return list(problem.derived[key])


def _subsets(problem: Problem, instance: Instance, params: SubsetParams) -> list[tuple[int, ...]]:
    allowed = set(instance.allowed)
    everything = tuple(sorted({device for devices in allowed for device in devices}))
    needed = {devices[0] for devices in allowed if len(devices) == 1}
    delays = _delays(instance, params.most_delays)
    work = _work(instance)
    kind = [(device.type, device.memory_bytes) for device in problem.topology.devices]
    used = [tuple(device for device in pool if device in everything) for pool in (*_types(kind), *_islands(delays))]
    pools = list(dict.fromkeys((everything, *used)))
    picked = [_best(pool, size, work, delays) for size in params.sizes for pool in pools if size < len(pool)]
    few = [tuple(sorted(needed.union(devices))) for devices in picked]
    wholes = [tuple(sorted(needed.union(pool))) for pool in pools if len(pool) > 1]
    few, wholes = ([part for part in parts if len(part) < instance.device_count] for parts in (few, wholes))
    found: dict[object, tuple[int, ...]] = {}
    for devices in sorted((*wholes, *few), key=lambda devices: sum(work[device] for device in devices) / len(devices)):
        found.setdefault(_look(devices, kind, work, delays), devices)
    chosen = sorted(found.values(), key=[*few, *wholes].index)[: params.most]
    return sorted(chosen, key=len)


def _work(instance: Instance) -> list[int]:
    """[device] → ticks of all ops there; one that may not run there counts as long as where it takes longest."""
    work = [0] * instance.device_count
    for row, devices, longest in zip(instance.duration, instance.allowed, instance.longest, strict=True):
        for device in range(instance.device_count):
            work[device] += row[device] if device in devices else longest
    return work


def _delays(instance: Instance, most: int) -> Delays:
    arcs = [delay for row in instance.successors for _, delay in row]
    tables = Counter(arcs[:: -(-len(arcs) // most) or 1])
    one_way = np.zeros((instance.device_count, instance.device_count), dtype=np.int64)
    for delay, count in tables.items():
        one_way += count * np.minimum(delay, FAR // max(1, len(instance.successors)))
    return np.asarray(one_way + one_way.T)


def _types(kind: Sequence[tuple[str, int | None]]) -> Iterator[tuple[int, ...]]:
    for name in dict.fromkeys(name for name, _ in kind):
        yield tuple(device for device, (other, _) in enumerate(kind) if other == name)


def _islands(delays: Delays) -> Iterator[tuple[int, ...]]:
    """Components of the devices joined by all pairs up to some delay, for every delay: single-linkage clusters."""
    count = len(delays)
    home = list(range(count))
    seen: set[tuple[int, ...]] = set()
    pairs = sorted((int(delays[pair]), pair) for pair in combinations(range(count), 2))
    for number, (delay, (a, b)) in enumerate(pairs):
        old, new = home[b], home[a]
        home = [new if other == old else other for other in home]
        if number + 1 == len(pairs) or pairs[number + 1][0] > delay:
            for label in set(home):
                island = tuple(device for device, other in enumerate(home) if other == label)
                if 1 < len(island) < count and island not in seen:
                    seen.add(island)
                    yield island


def _best(pool: Sequence[int], size: int, work: Sequence[int], delays: Delays) -> tuple[int, ...]:
    """The fastest devices of a pool; of equally fast ones those of least total delay, grown from the nearest pair."""
    limit = sorted(work[device] for device in pool)[size - 1]
    faster = [device for device in pool if work[device] < limit]
    equal = [device for device in pool if work[device] == limit]

    def grown(begin: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        chosen = list(begin)
        nearness = delays[:, chosen].sum(axis=1)
        left = np.zeros(len(delays), dtype=bool)
        left[equal], left[chosen] = True, False
        while len(chosen) < size:
            nearest = int(np.where(left, nearness, np.iinfo(np.int64).max).argmin())
            chosen.append(nearest)
            left[nearest] = False
            nearness = nearness + delays[:, nearest]
        return int(delays[np.ix_(chosen, chosen)].sum()), tuple(sorted(chosen))

    begins = [faster] if faster or size == 1 else list(combinations(equal, 2))
    return min(map(grown, begins))[1]


def _look(
    devices: Sequence[int], kind: Sequence[tuple[str, int | None]], work: Sequence[int], delays: Delays
) -> tuple[object, ...]:
    """Equal for subsets that a symmetry of the machine maps onto each other; two others are seldom equal."""
    pairs = sorted((*sorted((work[a], work[b])), int(delays[a, b])) for a, b in combinations(devices, 2))
    return tuple(sorted(map(str, (kind[device] for device in devices)))), tuple(pairs)


Search = Callable[[Problem, Instance, Incumbent], None]
"""Improves an incumbent that holds a schedule of the problem's instance."""


@dataclass(frozen=True)
class PartParams:
    """Shares of the time that is left when a step begins; none was tuned.

    Attributes
    ----------
    few
        Devices up to which a search is quick: on larger machines such parts come ahead of the machine itself.
    start_share, starts
        For heuristics on every part, and how many of them.
    op_s
        Seconds for each op to restrict a problem and to make its first list schedule. What would not fit is left out.
    ahead_margin, ahead_share, margin, share
        Parts whose heuristics are at most so much behind what is known are searched, for this share in all: ahead of
        the machine itself, and after it.
    first_share
        What the most promising of them gets, and of the rest the next.
    even
        Those at most so much behind the best of them count as equally good.
    """

    few: int = 4
    start_share: float = 0.2
    starts: int = 3
    op_s: float = 2e-4
    ahead_margin: float = 0.1
    ahead_share: float = 0.85
    margin: float = 0.03
    share: float = 0.5
    first_share: float = 0.9
    even: float = 0.03


PARAMS = PartParams()


class Restricted:
    """A problem on some of the devices of another (`dlplacer.problem.restriction`), and the way back.

    Parameters
    ----------
    devices
        [device of the restricted problem] → device of the whole.

    Attributes
    ----------
    instance
        Of the restricted problem.
    """

    def __init__(self, problem: Problem, devices: tuple[int, ...], whole: Problem) -> None:
        self.problem, self.devices = problem, devices
        self.instance = build_instance(problem)
        self._target = build_instance(whole)
        self._routes: dict[tuple[int, TimedRoute], TimedRoute] = {}

    def of_the_whole(self, schedule: Schedule) -> Schedule:
        """Return the schedule as one of the whole; without contention everything is as early as its order allows."""
        count = self._target.op_count
        device = tuple(self.devices[here] for here in schedule.device[:count])
        if self._target.traffic is None:
            order = [op for op in sequence(self.instance, schedule.device, schedule.start) if op < count]
            return in_sequence(self._target, device, order)
        start = schedule.start[:count]
        ends = (begin + self._target.duration[op][device[op]] for op, begin in enumerate(start))
        return Schedule(device, start, max(ends), tuple(map(self._on_links_of_the_whole, schedule.transfers)))

    def _on_links_of_the_whole(self, send: ScheduledTransfer) -> ScheduledTransfer:
        traffic = self._target.traffic
        assert traffic is not None
        size = traffic.requests[send.request].size
        key = size, send.route
        if key not in self._routes:
            self._routes[key] = traffic.routes.along([segment.hops for segment in send.route], size)
        return replace(send, target=self.devices[send.target], route=self._routes[key])


class _Part:
    """A part of the machine, and the best of its own schedules so far."""

    def __init__(self, restricted: Restricted, outer: Incumbent) -> None:
        self.restricted, self._outer = restricted, outer
        self.best: Schedule | None = None
        self.searched = False

    @property
    def makespan(self) -> float:
        """Ticks of the best schedule there, infinite without any."""
        return self.best.makespan if self.best else inf

    def work(self, until: float, search: Search) -> None:
        """Let a search work until then on an incumbent of the part; the schedules that it finds go to the whole's."""
        restricted, outer = self.restricted, self._outer

        def offer(schedule: Schedule) -> None:
            self.best = schedule
            outer.offer(restricted.of_the_whole(schedule))

        # Progress on a part is not that of the whole.
        budget = replace(outer.budget.unreported, deadline=min(until, outer.budget.deadline))
        inner = Incumbent(budget, admission(restricted.problem, restricted.instance), offer)
        inner.offer(self.best)
        run = partial(search, restricted.problem, restricted.instance, inner)
        within(lambda: outer.best is not None and not budget.left_s, run)


class PartSearch:
    """The search on parts of the machine.

    Parameters
    ----------
    incumbent
        Of the problem; it holds a schedule.
    starts
        Heuristics, the quick ones first.
    search
        All phases, for a part with an incumbent of its own.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        incumbent: Incumbent,
        starts: Sequence[StartMethod],
        search: Search,
    ) -> None:
        self._problem, self._instance, self._incumbent = problem, instance, incumbent
        self._starts, self._search = starts[: PARAMS.starts], search
        self._parts: dict[tuple[int, ...], _Part] = {}

    def run_ahead(self) -> None:
        """Search parts of few devices where the machine has many."""
        if self._instance.device_count > PARAMS.few:
            self._run(PARAMS.few, PARAMS.ahead_margin, PARAMS.ahead_share)

    def run(self) -> None:
        """Search the parts whose heuristics find something nearly as good as what is known."""
        self._run(self._instance.device_count, PARAMS.margin, PARAMS.share)

    def _run(self, most: int, margin: float, share: float) -> None:
        incumbent = self._incumbent
        if incumbent.best is None or incumbent.closed:
            return
        # Where time is short, the large ones count: a search gains more there.
        for devices in sorted(device_subsets(self._problem, self._instance), key=len, reverse=True):
            if len(devices) <= most and devices not in self._parts:
                self._begin(devices, now() + PARAMS.start_share * incumbent.budget.left_s)
        until = now() + share * incumbent.budget.left_s
        near = [part for part in self._parts.values() if self._is_near(part, margin)]
        least = min((part.makespan for part in near), default=inf)

        def promise(part: _Part) -> tuple[bool, bool, int, float]:
            """Near the best, on few devices, but as many of them as may be: a search gains more there."""
            count = len(part.restricted.devices)
            return part.makespan > (1 + PARAMS.even) * least, count > PARAMS.few, -count, part.makespan

        for part in sorted((part for part in near if not part.searched), key=promise):
            if not incumbent.closed and self._is_near(part, margin):
                part.searched = True
                part.work(now() + PARAMS.first_share * (until - now()), self._search)

    def _is_near(self, part: _Part, margin: float) -> bool:
        best = self._incumbent.best
        return best is not None and part.makespan <= (1 + margin) * best.makespan

    def _begin(self, devices: tuple[int, ...], until: float) -> None:
        """Ask the first heuristics on a part."""
        if self._incumbent.closed or now() + PARAMS.op_s * self._problem.op_count > until:
            return
        problem = on_devices(self._problem, devices)
        if problem is not None and may_have_plan(problem):
            part = self._parts[devices] = _Part(Restricted(problem, devices, self._problem), self._incumbent)
            # Memory may suffice on the whole machine only.
            with suppress(InfeasibleError):
                part.work(until, lambda problem, own, inner: StartSearch(problem, own, inner, self._starts).run())
