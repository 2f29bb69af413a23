"""Placements of stages that fit in memory: tabu search with strategic oscillation (Glover 1989).

The dual problem of the stages yields placements that are short but overfill some devices. The search starts from these
and changes one stage per move. The price of overflow grows while memory is exceeded and falls while it suffices
(Gendreau, Hertz and Laporte 1994), so the search repeatedly crosses the limit of memory.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import Bounds, reachable_capacity
from dlplacer.solvers.decomposition.stage_bound import BlockStage, Ints, StageDual, build_stages
from dlplacer.solvers.heuristics.list_rules import by_rank, list_schedule, upward_ranks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import attempts
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import count_work, now, time_is_up, within

Floats = NDArray[np.float64]

_BUILD_SHARE, _DUAL_SHARE, _STARTS = 0.3, 0.5, 3
"""Shares of the time for the stages and for the bound; number of placements from which the search starts."""

_PRICE_STEP, _TENURE, _PATIENCE = 1.05, (5, 20), 3000
"""Growth of the price of overflow per move; moves for which a placement stays tabu; moves in vain that end a search."""

_COMPARED, _MOST_ENTRIES, _MOVE_S = 2**15, 2**25, 1e-4
"""Most stages × placements × devices compared per move, and in the tables; seconds of work per move."""


class StageSearch:
    """The tabu search, on tables of all placements of all stages."""

    def __init__(self, stages: Sequence[BlockStage]) -> None:
        count, most, devices = len(stages), max(len(s.choices) for s in stages), stages[0].size.shape[1]
        self.stages = stages
        self.ticks = np.full((count + 1, devices, most), np.inf)
        self.ticks[count] = 0.0
        self.size, self.end = np.zeros((count, most, devices)), np.zeros((count, most), np.int64)
        for number, stage in enumerate(stages):
            own = len(stage.choices)
            self.ticks[number, :, :own] = 0.0 if stage.ticks is None else stage.ticks
            self.size[number, :own], self.end[number, :own] = stage.size, stage.choices[:, -1]

    def improve(self, start: Mapping[int, int], rooms: Ints, seconds: float, seed: int) -> dict[int, int] | None:
        """The shortest placement found from `start` ([block] → device) within `rooms` ([device] → bytes), or None."""
        random, stop_at, move, since = np.random.default_rng(seed), now() + seconds, 0, 0
        every, tabu = np.arange(len(self.stages)), np.zeros(self.end.shape)
        at = np.array([(s.choices == [start[b] for b in s.blocks]).all(axis=1).argmax() for s in self.stages])
        used, least, best = self.size[every, at].sum(axis=0), np.inf, None
        price = self._ticks(at, every)[every, at].sum() / max(1.0, used.sum())
        sampled = max(1, _COMPARED // self.size[0].size)
        while since < _PATIENCE and now() < stop_at and not time_is_up():
            count_work(_MOVE_S)
            move, since = move + 1, since + 1
            some = every if sampled >= len(every) else random.choice(every, sampled, replace=False)
            usage = (used - self.size[some, at[some]])[:, None] + self.size[some]
            overflow, ticks = np.maximum(usage - rooms, 0.0).sum(axis=2), self._ticks(at, some)
            rows = np.arange(len(some))
            score = ticks - ticks[rows, at[some], None] + price * overflow
            score[tabu[some] > move] = score[rows, at[some]] = np.inf
            row, choice = divmod(int(score.argmin()), score.shape[1])
            stage = some[row]
            tabu[stage, at[stage]] = move + random.integers(*_TENURE)
            used, at[stage] = usage[row, choice], choice
            price *= _PRICE_STEP if overflow[row, choice] else 1 / _PRICE_STEP
            if not overflow[row, choice] and (length := self._length(at)) < least:
                least, best, since = length, at.copy(), 0
        if best is None:
            return None
        placed = zip(self.stages, best, strict=True)
        return {
            block: int(device)
            for s, choice in placed
            for block, device in zip(s.blocks, s.choices[choice], strict=True)
        }

    def _length(self, at: Ints) -> float:
        """Ticks of the sections; `at` is [stage] → the number of its placement."""
        every = np.arange(len(at))
        ends = self.end[every, at]
        return float(self.ticks[every, np.append(ends[:1], ends[:-1]), at].sum())

    def _ticks(self, at: Ints, some: Ints) -> Floats:
        """[position in `some`][placement] → ticks of the stage's and the next stage's sections, other stages fixed."""
        every = np.arange(len(at))
        before = np.append(self.end[0, at[0]], self.end[every, at][:-1])
        behind = self.ticks[some + 1, :, np.append(at, 0)[some + 1]]
        ticks: Floats = self.ticks[some, before[some]] + np.take_along_axis(behind, self.end[some], axis=1)
        return ticks


def search_stages(
    problem: Problem, bounds: Bounds, incumbent: Incumbent, surrogate: Instance, instance: Instance, seconds: float
) -> None:
    """Raise the bound, and offer list schedules on placements found within the surrogate's memory."""
    began, followers = now(), [op for op in range(instance.op_count) if op not in instance.sources]
    last = max(followers, key=lambda op: bounds.head[op] + instance.shortest[op])
    stages = build_stages(instance, last, seconds * _BUILD_SHARE)
    if not stages:
        return
    dual = StageDual(stages, reachable_capacity(instance.footprint, instance.capacity))
    enough = 2**62 if incumbent.best is None else incumbent.best.makespan
    within(lambda: now() > began + _DUAL_SHARE * seconds, lambda: dual.solve(enough))
    incumbent.raise_bound(dual.bound)
    if len(stages) * max(stage.size.size for stage in stages) > _MOST_ENTRIES or incumbent.closed:
        return
    search, rank, rooms = StageSearch(stages), by_rank(instance, upward_ranks(instance)), _rooms(surrogate)
    starts = sorted(dual.found, key=lambda one: int(np.maximum(one.size - rooms, 0).sum()))[:_STARTS]
    for number, one in enumerate(starts):
        if incumbent.closed:
            return
        here, until = one.device, now() + (began + seconds - now()) / (len(starts) - number)

        def schedule(tighter: Instance, until: float = until) -> Schedule | None:
            nonlocal here
            # Use half of the time left: the next attempt may need the rest.
            placed = search.improve(here, _rooms(tighter), (until - now()) / 2, incumbent.budget.seed)
            here = placed or here
            return None if placed is None else list_schedule(tighter, rank, [here[block] for block in sorted(here)])

        for found, *_ in attempts(problem, surrogate, schedule):
            incumbent.offer(found)


def _rooms(instance: Instance) -> Ints:
    return np.array([2**62 if room is None else room for room in instance.capacity], np.int64)
