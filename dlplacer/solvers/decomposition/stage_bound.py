"""A bound that knows memory and the order of layers: Lagrangian relaxation of memory over a chain of stages.

Let x place the blocks, P(x) be the sum of the lengths of the segments (`stages`), M_d(x) the bytes and W_d(x) the ticks
of work on device d. In every schedule of makespan T, P(x) ≤ T, W_d(x) ≤ T and M_d(x) ≤ C_d, so that for any prices
π, a_d, λ_d ≥ 0 with π + Σ a_d = 1

    T ≥ min_x [π P(x) + Σ_d a_d W_d(x) + λ_d M_d(x)] − Σ_d λ_d C_d.

The minimum is taken by dynamic programming (`stage_walks`) for every set U of devices that the stages use, and apart
for placements that return to a device; the least over these classes counts, each at prices of its own. In every class
the walk passes through all of U, and pays for it. Prices come from Kelley's cutting planes (1960): every walk found
says how its cost grows with the prices; a linear program takes the prices at which the least of them is greatest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.live_memory import stashes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import Bounds, reachable_capacity
from dlplacer.solvers.decomposition.stages import DecisionStage, Ints, StageChain, build_stages
from dlplacer.solvers.heuristics.list_rules import by_rank, list_schedule, program_order, upward_ranks
from dlplacer.solvers.heuristics.memory_packing import fitted
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Incumbent
from dlplacer.solvers.instance.time_limit import ask_time, now, within

NEVER = 2**61
"""Above any cost of a walk."""


@dataclass(frozen=True)
class Walk:
    """A placement of all stages: block → device, ticks of the segments, and bytes and ticks of work on every device."""

    device: dict[int, int]
    ticks: int
    kept: Ints
    work: Ints


class StageWalks:
    """The dynamic program over (a device was returned to, set of devices used so far, device of the boundary).

    A walk *returns* if it comes back to a device that it has left, or if a stage uses several devices. One that does
    not gives every device one run of stages.
    """

    def __init__(self, stages: Sequence[DecisionStage], device_count: int) -> None:
        self.stages = stages
        self.device_count = device_count
        self.shape = 2, 1 << device_count, device_count
        self._known: dict[tuple[int, int], Ints] = {}
        self._groups = [self._groups_of(stage) for stage in stages]
        self._costs: list[Ints] = []
        self._values: list[Ints] = []

    def least(self, path: int, kept: Ints, work: Ints) -> Ints:
        """[returns][set of devices] → the least cost of a walk that uses exactly these; `NEVER` if there is none.

        Parameters
        ----------
        path, kept, work
            Prices of a tick of the segments, and [device] → those of a byte and of a tick of work.
        """
        value = np.full(self.shape, NEVER, np.int64)
        value[0, 0, 0] = 0
        self._costs, self._values = [], [value]
        for stage, groups in zip(self.stages, self._groups, strict=True):
            ask_time()
            cost = path * stage.ticks + stage.kept @ kept + stage.work @ work
            reached = np.full(value.size, NEVER, np.int64)
            for members, targets in groups:
                np.minimum.at(reached, targets, self._values[-1] + cost[:, members].min(axis=1))
            self._costs.append(cost)
            self._values.append(reached.reshape(self.shape))
        return np.asarray(self._values[-1].min(axis=2))

    def walk(self, returns: int, used: int) -> Walk:
        """The walk that `least` has last found for a set of devices."""
        state = int(np.ravel_multi_index((returns, used, int(self._values[-1][returns, used].argmin())), self.shape))
        device: dict[int, int] = {}
        ticks, kept, work = 0, np.zeros(self.device_count, np.int64), np.zeros(self.device_count, np.int64)
        for stage, groups, cost, value in reversed(
            list(zip(self.stages, self._groups, self._costs, self._values[:-1], strict=True))
        ):
            ways = []
            for number, (members, targets) in enumerate(groups):
                after = np.where(targets == state, value + cost[:, members].min(axis=1), 2 * NEVER)
                ways.append((int(after.min()), number, int(after.argmin())))
            _, number, state = min(ways)
            members, before = groups[number][0], state % self.device_count
            chosen = int(members[cost[before, members].argmin()])
            device.update(zip(stage.blocks, stage.choices[chosen].tolist(), strict=True))
            ticks += int(stage.ticks[before, chosen])
            kept += stage.kept[before, chosen]
            work += stage.work[chosen]
        return Walk(device, ticks, kept, work)

    def _groups_of(self, stage: DecisionStage) -> list[tuple[Ints, Ints]]:
        """Placements that use the same devices and end on the same one, and the states that they lead to."""
        pairs = sorted(set(zip(stage.used.tolist(), stage.last.tolist(), strict=True)))
        return [(np.flatnonzero((stage.used == u) & (stage.last == d)), self._targets(u, d)) for u, d in pairs]

    def _targets(self, used: int, last: int) -> Ints:
        if (used, last) not in self._known:
            returned, before, here = np.indices(self.shape)
            left = used & ~(1 << here) & before
            returns = (returned == 1) | (used & (used - 1) != 0) | (left != 0)
            self._known[used, last] = (returns * self.shape[1] + (before | used)) * self.device_count + last
        return self._known[used, last]


Floats = NDArray[np.float64]

_LARGEST = 2**59
"""Sums in the dynamic program stay below this, in whole units of price."""


@dataclass(frozen=True)
class StageBoundParams:
    """When to stop.

    Attributes
    ----------
    most_devices, most_ops
        There are 2^D sets of devices: with six, a state has 768 values. Larger graphs take seconds for every set of
        prices.
    precision
        Share of the bound that more cutting planes could still bring.
    dearest
        The highest price of all bytes of a device, in makespans: no schedule pays as much.
    dual_share, placements
        Of the time, for the bound; the rest is for so many placements that are scheduled.
    """

    most_devices: int = 6
    most_ops: int = 20_000
    precision: float = 2e-4
    dearest: float = 100.0
    dual_share: float = 0.7
    placements: int = 12


PARAMS = StageBoundParams()


class _Class:
    """Walks over one set of devices, with or without a return: its bound, its prices and its cutting planes."""

    def __init__(self, returns: int, used: int) -> None:
        self.returns, self.used = returns, used
        self.bound, self.done = 0, False
        self.walks: list[Walk] = []


class StageDual:
    """The dual problem of a chain of stages.

    Parameters
    ----------
    instance
        Of at most `StageBoundParams.most_devices` devices.
    chain
        Its stages.
    """

    def __init__(self, instance: Instance, chain: StageChain) -> None:
        self.instance, self.chain = instance, chain
        count = instance.device_count
        self.walks = StageWalks(chain.stages, count)
        self.capacity = np.array([-1 if room is None else room for room in instance.capacity], np.int64)
        self.beside_work = np.array(
            [[sum(instance.duration[op][d] for op in instance.members[b]) for d in range(count)] for b in chain.beside],
            np.int64,
        ).reshape(len(chain.beside), count)
        self.beside_size = np.array([instance.footprint[b] for b in chain.beside], np.int64)
        barred = [[d not in instance.allowed[instance.members[b][0]] for d in range(count)] for b in chain.beside]
        self.barred = np.array(barred, bool).reshape(len(chain.beside), count)
        self.classes = self._classes()
        self.scale = float(max(1, sum(int(stage.ticks.max()) for stage in chain.stages)))

    def solve(self, stop_at: float, enough: int = FAR) -> int:
        """A makespan in ticks that no schedule beats.

        Parameters
        ----------
        stop_at
            A moment of the clock (`now`).
        enough
            A makespan that is known: a bound as high as this needs no better prices.
        """
        within(lambda: now() > stop_at, lambda: self._solve(enough))
        return min(FAR, min((one.bound for one in self.classes), default=0))

    def placements(self) -> list[list[int]]:
        """[block] → device of the walks that came up, those of least excess and time first; memory may not suffice."""
        found: dict[tuple[int, ...], float] = {}
        rooms = np.where(self.capacity < 0, np.iinfo(np.int64).max, self.capacity)
        for walk in (walk for one in self.classes for walk in one.walks):
            excess = np.maximum(walk.kept - rooms, 0).sum() / max(1, walk.kept.sum())
            place = tuple(walk.device[block] for block in range(len(walk.device)))
            found[place] = walk.ticks * (1.0 + float(excess))
        return [list(place) for place in sorted(found, key=found.__getitem__)]

    def _solve(self, enough: int) -> None:
        self._raise(*self._whole_prices(1.0, *(np.zeros(len(self.capacity)) for _ in range(2))))
        while self.classes:
            weakest = min(self.classes, key=lambda one: one.bound)
            if weakest.done or weakest.bound >= enough:
                return
            self._improve(weakest)

    def _classes(self) -> list[_Class]:
        """The classes whose devices hold all stages."""
        count = self.instance.device_count
        least = sum(int(stage.kept.sum(axis=2).min()) for stage in self.chain.stages)
        found = []
        for used in range(1, 1 << count):
            rooms = [int(self.capacity[d]) for d in range(count) if used >> d & 1]
            if -1 in rooms or sum(rooms) >= least:
                found += [_Class(returns, used) for returns in (0, 1)]
        return found

    def _improve(self, one: _Class) -> None:
        """One more cutting plane."""
        real, prices = self._prices(one)
        whole = self._whole_prices(*prices)
        self._raise(*whole)
        one.done = real - one.bound <= PARAMS.precision * max(1, one.bound)
        one.walks.append(self._walk(one, *whole[1:]))

    def _walk(self, one: _Class, kept: Ints, work: Ints) -> Walk:
        """The least walk of a class with what lies beside it."""
        walk = self.walks.walk(one.returns, one.used)
        sizes, ticks, places = walk.kept.copy(), walk.work.copy(), dict(walk.device)
        if len(self.beside_size):
            device = self._beside(kept, work).argmin(axis=1)
            places.update(zip(self.chain.beside, device.tolist(), strict=True))
            np.add.at(sizes, device, self.beside_size)
            np.add.at(ticks, device, self.beside_work[np.arange(len(device)), device])
        return Walk(places, walk.ticks, sizes, ticks)

    def _beside(self, kept: Ints, work: Ints) -> Ints:
        return np.where(self.barred, NEVER, self.beside_work * work + self.beside_size[:, None] * kept)

    def _raise(self, path: int, kept: Ints, work: Ints) -> None:
        """All classes at these prices, in whole numbers."""
        least = self.walks.least(path, kept, work)
        beside = int(self._beside(kept, work).min(axis=1).sum()) if len(self.beside_size) else 0
        paid = sum(int(price) * int(room) for price, room in zip(kept, self.capacity, strict=True) if room >= 0)
        weight = path + int(work.sum())
        for one in self.classes:
            cost = int(least[one.returns, one.used])
            if cost >= NEVER:
                one.bound, one.done = FAR, True
            elif weight:
                total = cost + beside - paid
                one.bound = max(one.bound, -(-total // weight))

    def _whole_prices(self, path: float, kept: Floats, work: Floats) -> tuple[int, Ints, Ints]:
        """Prices as whole numbers, as large as sums stay below `_LARGEST`."""
        most = path * self.scale + 1.0
        most += sum(float((stage.kept @ kept).max() + (stage.work @ work).max()) for stage in self.chain.stages)
        most += float((self.beside_work @ work).sum() + self.beside_size.sum() * kept.max())
        unit = _LARGEST / most
        whole = [np.floor(np.maximum(prices, 0) * unit).astype(np.int64) for prices in (kept, work)]
        # A price of unlimited memory would be paid and not given back.
        return int(path * unit), np.where(self.capacity < 0, 0, whole[0]), whole[1]

    def _prices(self, one: _Class) -> tuple[float, tuple[float, Floats, Floats]]:
        """The most that the planes of a class allow, and the prices at which they do."""
        from scipy.optimize import linprog

        count = self.instance.device_count
        rooms = np.where(self.capacity > 0, self.capacity, 1).astype(float)
        rows = [
            [1.0, -walk.ticks / self.scale, *(-walk.work / self.scale), *(1.0 - walk.kept / rooms)]
            for walk in one.walks
        ]
        dearest = [PARAMS.dearest if room >= 0 else 0.0 for room in self.capacity]
        apart = 1.0 if len(self.beside_size) and self.beside_work.any() else 0.0
        bounds = [(0, 1e3), (0, 1), *[(0, apart)] * count, *((0, most) for most in dearest)]
        solved = linprog(
            [-1.0, *[0.0] * (1 + 2 * count)],
            A_ub=rows or None,
            b_ub=[0.0] * len(rows) or None,
            A_eq=[[0.0, 1.0, *[1.0] * count, *[0.0] * count]],
            b_eq=[1.0],
            bounds=bounds,
            method="highs",
        )
        if solved.status != 0 or not rows:
            return float(FAR), (1.0, np.zeros(count), np.zeros(count))
        x = solved.x
        return x[0] * self.scale, (x[1], x[2 + count :] / rooms * self.scale, x[2 : 2 + count])


def search_stages(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float) -> None:
    """Raise the bound, and offer list schedules on the placements that come up.

    Nothing where all ops fit on every device, or where there are too many devices.
    """
    began, kept = now(), stashes(problem)
    everything = sum(instance.footprint) + sum(stash.size for stash in kept)
    binds = any(room is not None and room < everything for room in instance.capacity)
    followers = [op for op in range(instance.op_count) if op not in instance.sources]
    few = instance.device_count <= PARAMS.most_devices and instance.op_count <= PARAMS.most_ops
    if not binds or not followers or not few or incumbent.closed:
        return
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    chain = build_stages(instance, last, kept, seconds * (1 - PARAMS.dual_share))
    if not chain.stages:
        return
    sizes = [*instance.footprint, *(stash.size for stash in kept)]
    dual = StageDual(replace(instance, capacity=tuple(reachable_capacity(sizes, instance.capacity))), chain)
    enough = FAR if incumbent.best is None else incumbent.best.makespan
    incumbent.raise_bound(dual.solve(began + PARAMS.dual_share * seconds, enough))
    ranks, order = [by_rank(instance, upward_ranks(instance, weight)) for weight in (1.0, 0.0)], program_order(instance)
    for wished in dual.placements()[: PARAMS.placements]:
        placement = fitted(instance, wished, order)
        for rank in ranks if placement is not None else ():
            if now() > began + seconds or incumbent.closed:
                return
            incumbent.offer(list_schedule(instance, rank, placement))
