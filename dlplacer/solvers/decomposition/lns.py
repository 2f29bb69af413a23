"""Large-neighbourhood search: windows of the best schedule solved exactly, one batch after another."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from ortools.sat.python import cp_model

from dlplacer.solvers.decomposition.window_model import build_window_model
from dlplacer.solvers.decomposition.windows import Window, WindowSequence, replaced
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory

_FIRST_SIZE, _LEAST_SIZE, _LARGEST_SIZE = 12.0, 6.0, 80.0
_GROW, _SHRINK = 1.03, 0.85
_WORK = 0.03
_EASY_WORK = 0.01
_STUCK = 30
_SECONDS = 5.0


def repair(instance: Instance, incumbent: Incumbent, seconds: float, patience: int) -> None:
    """Offer better schedules until the gap is closed, the time is up, or `patience` windows in a row bring nothing.

    Windows lie at random places. They grow while they are solved with little work and shrink where they are not solved.
    After some windows without success, solutions as good as the present one are taken too, to move on.
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
            timeline = WindowSequence(instance, current)
            windows = _choose(timeline, round(size), budget.workers, random)
            upper = current.makespan - (idle < _STUCK)
            left = min(_SECONDS, budget.left_s, max(0.0, stop_at - time.monotonic()))
            tasks = [pool.submit(_solve, window, upper, random.randrange(2**31), left) for window in windows]
            results = [task.result() for task in tasks]
            better = _combined(timeline, windows, [found for found, _ in results])
            idle = 0 if better.makespan < current.makespan else idle + len(windows)
            current = better
            incumbent.offer(current)
            for _, work in results:
                factor = _GROW if work < _EASY_WORK else _SHRINK if work >= _WORK else 1.0
                size = min(_LARGEST_SIZE, max(_LEAST_SIZE, size * factor))


def _choose(timeline: WindowSequence, size: int, count: int, random: Random) -> list[Window]:
    """Windows at random places that do not overlap."""
    size = max(1, min(size, len(timeline.ops) - timeline.first))
    places: list[int] = []
    for _ in range(count):
        place = random.randint(min(timeline.first, len(timeline.ops) - size), len(timeline.ops) - size)
        if all(abs(place - other) >= size for other in places):
            places.append(place)
    return [timeline.window(place, size) for place in places]


def _solve(window: Window, upper: int, seed: int, seconds: float) -> tuple[Schedule | None, float]:
    """A schedule of the window with which the whole takes at most `upper` ticks, and the deterministic work spent."""
    if window.bounds.makespan > upper:
        return None, 0.0
    model, variables = build_window_model(window, upper)
    solver = new_solver(1, seed, seconds)
    solver.parameters.max_deterministic_time = _WORK
    found = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    schedule = read_schedule(variables, window.instance, solver.boolean_value, solver.value) if found else None
    return schedule, solver.deterministic_time


def _combined(timeline: WindowSequence, windows: Sequence[Window], found: Sequence[Schedule | None]) -> Schedule:
    """The schedule after all solutions that make it no worse.

    Each window was solved as if the others stayed as they are: two may move a source that both read, or fill the same
    memory, so what they come to together is looked at again.
    """
    current, ops = timeline.schedule, timeline.ops
    for window, schedule in zip(windows, found, strict=True):
        if schedule is not None:
            changed, order = replaced(timeline, current, ops, window, schedule)
            if changed.makespan <= current.makespan and keeps_blocks_and_memory(timeline.instance, changed):
                current, ops = changed, order
    return current
