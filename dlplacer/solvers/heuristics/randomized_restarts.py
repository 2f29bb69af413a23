"""Anytime improvement: many list schedules, each from slightly different ranks and placements."""

from dataclasses import dataclass
from random import Random

from dlplacer.solvers.heuristics.list_rules import DELAY_WEIGHTS, by_rank, list_schedule, upward_ranks
from dlplacer.solvers.heuristics.memory_packing import choose_components
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import ask_time, now, within


@dataclass(frozen=True)
class RestartParams:
    """The reach of a round; each round draws one value of each, as the best one differs from graph to graph.

    Attributes
    ----------
    noises
        Standard deviations of the factors on upward ranks.
    windows
        Half-widths of the time that is given up, as shares of the makespan.
    jitters
        Standard deviations of start times in the window, as shares of the makespan.
    fresh_every
        One round in so many builds a fresh schedule, the others repair the best one.
    """

    noises: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    windows: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    jitters: tuple[float, ...] = (0.003, 0.01, 0.03)
    fresh_every: int = 3


PARAMS = RestartParams()


def improve(instance: Instance, incumbent: Incumbent, seconds: float, rounds: int) -> None:
    """Offer better schedules until the gap is closed, the time is up or the rounds are done.

    The rounds alternate between a fresh schedule from perturbed upward ranks, and a repair: in a random window of time
    the best schedule's placement and order are given up and decided anew by the rule, the rest is kept. Where a round
    finds something better, its ops are pushed late and early again.
    """
    stop_at = now() + seconds
    within(lambda: now() > stop_at, lambda: _improve(instance, incumbent, rounds))


def _improve(instance: Instance, incumbent: Incumbent, rounds: int) -> None:
    random = Random(incumbent.budget.seed)
    limited = choose_components(instance)
    ranks = [upward_ranks(limited, weight) for weight in DELAY_WEIGHTS]
    current = incumbent.best
    for number in range(rounds):
        if current is None or incumbent.closed or not incumbent.budget.left_s:
            return
        ask_time()
        if number % PARAMS.fresh_every == 0:
            noise, base = random.choice(PARAMS.noises), random.choice(ranks)
            perturbed = [rank * (1 + noise * random.gauss(0, 1)) for rank in base]
            found = list_schedule(limited, by_rank(limited, perturbed))
        else:
            found = _repaired(instance, current, random)
        if found is not None and found.makespan <= current.makespan:
            # Ties are accepted, to drift; only true progress is worth two more list schedules.
            tried = [found]
            if found.makespan < current.makespan:
                incumbent.offer(found)
                tried.append(justified(instance, found))
            for one in tried:
                if incumbent.accepts(one):
                    current = one


def justified(instance: Instance, schedule: Schedule) -> Schedule:
    """The schedule after pushing all ops late, by their ends, and early again, by their new starts, while that helps.

    Placements stay. This is forward-backward improvement of project scheduling (Tormos and Lova 2001).
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
    width = random.choice(PARAMS.windows) * schedule.makespan
    jitter = random.choice(PARAMS.jitters) * schedule.makespan
    fixed = placement(instance, schedule)
    priority: list[float] = [-start for start in schedule.start]
    for op, start in enumerate(schedule.start):
        if abs(start - center) < width:
            fixed[instance.block[op]] = -1
            priority[op] += jitter * random.gauss(0, 1)
    if len(set(instance.component)) > 1:
        # A block left open might be torn from its part of the graph.
        fixed = placement(instance, schedule)
    return list_schedule(instance, by_rank(instance, priority), fixed)
