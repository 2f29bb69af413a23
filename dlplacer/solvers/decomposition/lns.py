"""Large-neighbourhood search: windows of the best schedule solved exactly, one batch after another."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from threading import Event

from dlplacer.solvers.decomposition.windows import Window, WindowSequence, build_window_model, replaced
from dlplacer.solvers.ilp.cp_sat_search import new_solver, read_schedule
from dlplacer.solvers.ilp.solver_thread import solved_in_thread
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory
from dlplacer.solvers.instance.time_limit import now


@dataclass(frozen=True)
class WindowSearchParams:
    """The size of windows, and the effort for each: a window that is not solved to the end brings nothing.

    Attributes
    ----------
    first_size, least_size, largest_size
        Ops. Above the largest, CP-SAT sets up no precedence literals (its limit is 60 intervals per device).
    growth, shrinkage
        Factors on the size after an easy window and after one that was not solved.
    work, easy_work
        Deterministic seconds of CP-SAT per window, and those up to which a window counts as easy.
    stuck_after
        Windows in a row without success from which on solutions as good as the present one are taken too.
    most_s
        Seconds per window, should the deterministic limit fail.
    """

    first_size: float = 12.0
    least_size: float = 6.0
    largest_size: float = 80.0
    growth: float = 1.03
    shrinkage: float = 0.85
    work: float = 0.03
    easy_work: float = 0.01
    stuck_after: int = 30
    most_s: float = 5.0


PARAMS = WindowSearchParams()


def search_windows(instance: Instance, incumbent: Incumbent, seconds: float, patience: int) -> None:
    """Offer better schedules until the gap is closed, the time is up, or `patience` windows in a row bring nothing.

    Windows lie at random places. They grow while they are solved with little work and shrink where they are not solved.
    After some windows without success, solutions as good as the present one are taken too, to move on.
    """
    budget = incumbent.budget
    random = Random(budget.seed)
    current = incumbent.best
    size, idle = PARAMS.first_size, 0
    stop_at = now() + seconds
    # Threads suffice: CP-SAT releases the interpreter's lock while it solves.
    with ThreadPoolExecutor(budget.workers) as pool:
        while current is not None and idle < patience and not incumbent.closed:
            if not budget.left_s or now() > stop_at:
                return
            timeline = WindowSequence(instance, current)
            windows = _choose(timeline, round(size), budget.workers, random)
            upper = current.makespan - (idle < PARAMS.stuck_after)
            left = min(PARAMS.most_s, budget.left_s, max(0.0, stop_at - now()))
            tasks = [
                pool.submit(copy_context().run, _solve, window, upper, random.randrange(2**31), left, budget.stop)
                for window in windows
            ]
            results = [task.result() for task in tasks]
            better = _combined(timeline, windows, [found for found, _ in results])
            accepted = better is current or incumbent.accepts(better)
            idle = 0 if accepted and better.makespan < current.makespan else idle + len(windows)
            current = better if accepted else current
            for _, work in results:
                factor = PARAMS.growth if work < PARAMS.easy_work else PARAMS.shrinkage if work >= PARAMS.work else 1.0
                size = min(PARAMS.largest_size, max(PARAMS.least_size, size * factor))


def _choose(timeline: WindowSequence, size: int, count: int, random: Random) -> list[Window]:
    """Windows at random places that do not overlap."""
    size = max(1, min(size, len(timeline.ops) - timeline.first))
    places: list[int] = []
    for _ in range(count):
        place = random.randint(min(timeline.first, len(timeline.ops) - size), len(timeline.ops) - size)
        if all(abs(place - other) >= size for other in places):
            places.append(place)
    return [timeline.window(place, size) for place in places]


def _solve(window: Window, upper: int, seed: int, seconds: float, stop: Event) -> tuple[Schedule | None, float]:
    """A schedule of the window with which the whole takes at most `upper` ticks, and the deterministic work spent."""
    if window.bounds.makespan > upper:
        return None, 0.0
    model, variables = build_window_model(window, upper)
    solver = new_solver(1, seed, seconds, PARAMS.work)
    found = solved_in_thread(solver, model, seconds, stop.is_set)
    if found is None:
        return None, PARAMS.work
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
