"""Large-neighbourhood search: windows of the best timetable solved exactly, one batch after another."""

import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

from ortools.sat.python import cp_model

from dlplacer.solvers.ilp.model import build_window_model
from dlplacer.solvers.ilp.search import new_solver, read_timetable
from dlplacer.solvers.incumbent import Incumbent
from dlplacer.solvers.instance import Instance
from dlplacer.solvers.timetable import Timetable
from dlplacer.solvers.windows import Timeline, Window, replaced

_FIRST_SIZE = 12.0
_SIZES = (6.0, 80.0)
_GROW, _SHRINK = 1.03, 0.85
_WORK = 0.1
"""Deterministic seconds of a window's search."""

SLACK = 1


def repair(instance: Instance, incumbent: Incumbent, seconds: float, patience: int) -> None:
    """Offer better timetables until the gap is closed, the time is up, or `patience` windows in a row bring nothing.

    Windows lie at random places. They grow while they are solved to the end and shrink while they are not.
    """
    budget = incumbent.budget
    random = Random(budget.seed)
    current = incumbent.best
    size, idle = _FIRST_SIZE, 0
    stop_at = time.monotonic() + seconds
    with ThreadPoolExecutor(budget.workers) as pool:
        while current is not None and idle < patience and not incumbent.closed:
            if not budget.left_s or time.monotonic() > stop_at:
                return
            timeline = Timeline(instance, current)
            windows = _choose(timeline, round(size), budget.workers, random)
            seeds = [random.randrange(2**31) for _ in windows]
            upper = current.makespan
            ops = timeline.ops
            for window, (found, finished) in zip(
                windows, pool.map(lambda pair: _solve(pair[0], upper, pair[1]), zip(windows, seeds)), strict=True
            ):
                size = min(_SIZES[1], max(_SIZES[0], size * (_GROW if finished else _SHRINK)))
                idle += 1
                if found is not None:
                    new, order = replaced(timeline, current, ops, window, found)
                    if new.makespan < current.makespan:
                        idle = 0
                    if new.makespan <= current.makespan:
                        current, ops = new, order
            incumbent.offer(current)


def _choose(timeline: Timeline, size: int, count: int, random: Random) -> list[Window]:
    """Windows at random places that do not overlap."""
    last = len(timeline.ops)
    size = min(size, last - timeline.first)
    if size < 1:
        return []
    places = [random.randint(timeline.first, last - size)]
    for _ in range(count - 1):
        place = random.randint(timeline.first, last - size)
        if all(abs(place - other) >= size for other in places):
            places.append(place)
    return [timeline.window(place, size) for place in places]


def _solve(window: Window, makespan: int, seed: int) -> tuple[Timetable | None, bool]:
    """A timetable of the window with which the whole ends earlier, and whether the search came to its end."""
    upper = makespan - SLACK
    if window.bounds.makespan > upper:
        return None, True
    model, variables = build_window_model(window, upper)
    solver = new_solver(1, seed, 10.0)
    solver.parameters.max_deterministic_time = _WORK
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return read_timetable(
            variables, window.instance, solver.boolean_value, solver.value
        ), status == cp_model.OPTIMAL
    return None, status == cp_model.INFEASIBLE
