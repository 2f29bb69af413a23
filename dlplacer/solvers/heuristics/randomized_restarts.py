"""Anytime improvement: many list schedules, each from slightly different ranks and placements."""

import time
from collections.abc import Sequence
from random import Random

from dlplacer.solvers.heuristics.common.pack import choose_components
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

_NOISES = (0.01, 0.03, 0.1, 0.3)
_WINDOWS = (0.02, 0.05, 0.1, 0.2)
_JITTERS = (0.003, 0.01, 0.03)


def improve(instance: Instance, incumbent: Incumbent, seconds: float, rounds: int) -> None:
    """Offer better schedules until the gap is closed, the time is up or the rounds are done.

    The rounds alternate between a fresh schedule from perturbed upward ranks, and a repair: in a random window of time
    the best schedule's placement and order are given up and decided anew by the rule, the rest is kept. Where a round
    finds something better, its ops are pushed late and early again.
    """
    random = Random(incumbent.budget.seed)
    limited = choose_components(instance)
    ranks = [upward_ranks(limited, weight) for weight in DELAY_WEIGHTS]
    current = incumbent.best
    stop_at = time.monotonic() + seconds
    for number in range(rounds):
        if current is None or incumbent.closed or not incumbent.budget.left_s or time.monotonic() > stop_at:
            return
        if number % 3 == 0:
            noise, base = random.choice(_NOISES), random.choice(ranks)
            perturbed = [rank * (1 + noise * random.gauss(0, 1)) for rank in base]
            found = list_schedule(limited, by_rank(limited, perturbed))
        else:
            found = _repaired(instance, current, random)
        if found is not None and found.makespan <= current.makespan:
            if found.makespan < current.makespan:
                found = justified(instance, found)
            current = found
            incumbent.offer(found)


def justified(instance: Instance, schedule: Schedule) -> Schedule:
    """The schedule after pushing all ops late, by their ends, and early again, by their new starts, while that helps.

    Placements stay. This is forward-backward improvement, as known from project scheduling.
    """
    best = schedule
    while True:
        fixed = placement(instance, best)
        ends = [begin + instance.duration[op][best.device[op]] for op, begin in enumerate(best.start)]
        late = list_schedule(instance.reversed, by_rank(instance.reversed, ends), fixed)
        if late is None:
            return best
        starts = late.mirrored(instance).start
        early = list_schedule(instance, by_rank(instance, [-start for start in starts]), fixed)
        if early is None or early.makespan >= best.makespan:
            return best
        best = early


def placement(instance: Instance, schedule: Schedule) -> list[int]:
    """[block] → device."""
    return [schedule.device[ops[0]] for ops in instance.members]


def _repaired(instance: Instance, schedule: Schedule, random: Random) -> Schedule | None:
    center = random.random() * schedule.makespan
    width = random.choice(_WINDOWS) * schedule.makespan
    jitter = random.choice(_JITTERS) * schedule.makespan
    fixed = placement(instance, schedule)
    priority: list[float] = [-start for start in schedule.start]
    for op, start in enumerate(schedule.start):
        if abs(start - center) < width:
            fixed[instance.block[op]] = -1
            priority[op] += jitter * random.gauss(0, 1)
    return list_schedule(instance, by_rank(instance, priority), _within_component(instance, schedule, fixed))


def _within_component(instance: Instance, schedule: Schedule, fixed: Sequence[int]) -> list[int]:
    """The decisions, with blocks left open only if the machine is connected: otherwise a part might be torn apart."""
    if len(set(instance.component)) == 1:
        return list(fixed)
    return placement(instance, schedule)
