"""Anytime improvement by many list schedules with perturbed ranks and placements."""

from random import Random

from dlplacer.solvers.heuristics.list_rules import DELAY_WEIGHTS, by_rank, list_schedule, upward_ranks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.instance.time_limit import ask_time, now, within

_NOISES, _WINDOWS, _JITTERS = (0.01, 0.03, 0.1, 0.3), (0.02, 0.05, 0.1, 0.2), (0.003, 0.01, 0.03)
"""Standard deviations of factors on upward ranks; half-widths of repair windows, and standard deviations of start times
inside a window, as shares of the makespan. Each round draws values, because the best ones depend on the graph."""

_FRESH_EVERY = 3
"""One round in this many builds a fresh schedule; the others repair the best one."""


def improve(instance: Instance, incumbent: Incumbent, seconds: float, rounds: int) -> None:
    """Offer better schedules until the gap is closed, the time is up or the rounds are done.

    A round builds a fresh schedule from perturbed upward ranks, or repairs the best one. A repair keeps the devices of
    ops outside a random time window; list scheduling chooses the others. The ops of an improvement are then pushed late
    and early (`justified`).
    """
    stop_at = min(now() + seconds, incumbent.budget.deadline)
    within(lambda: now() > stop_at or incumbent.closed, lambda: _improve(instance, incumbent, rounds))


def _improve(instance: Instance, incumbent: Incumbent, rounds: int) -> None:
    random, current = Random(incumbent.budget.seed), incumbent.best
    for number in range(rounds):
        ask_time()
        if current is None:
            return
        if number % _FRESH_EVERY == 0:
            noise, weight = random.choice(_NOISES), random.choice(DELAY_WEIGHTS)
            ranks = [rank * (1 + noise * random.gauss(0, 1)) for rank in upward_ranks(instance, weight)]
            found = list_schedule(instance, by_rank(instance, ranks))
        else:
            found = _repaired(instance, current, random)
        if found is not None and found.makespan < current.makespan:
            better = [one for one in (found, justified(instance, found)) if incumbent.offer(one)]
            current = better[-1] if better else current
        elif found is not None and found.makespan == current.makespan and incumbent.admits(found):
            current = found  # let equal schedules drift


def justified(instance: Instance, schedule: Schedule) -> Schedule:
    """The schedule after pushing all ops late by their ends, then early by their new starts; placements stay.

    This is forward-backward improvement from project scheduling (Tormos and Lova 2001).
    """
    fixed = [schedule.device[ops[0]] for ops in instance.members]
    ends = [begin + instance.duration[op][schedule.device[op]] for op, begin in enumerate(schedule.start)]
    late = list_schedule(instance.reversed, by_rank(instance.reversed, ends), fixed)
    if late is None:
        return schedule
    starts = late.mirrored(instance).start
    early = list_schedule(instance, by_rank(instance, [-start for start in starts]), fixed)
    return schedule if early is None or early.makespan >= schedule.makespan else early


def _repaired(instance: Instance, schedule: Schedule, random: Random) -> Schedule | None:
    center, width = random.random() * schedule.makespan, random.choice(_WINDOWS) * schedule.makespan
    jitter = random.choice(_JITTERS) * schedule.makespan
    fixed = [schedule.device[ops[0]] for ops in instance.members]
    ranks: list[float] = [-start for start in schedule.start]
    for op, start in enumerate(schedule.start):
        if abs(start - center) < width:
            fixed[instance.block[op]] = -1
            ranks[op] += jitter * random.gauss(0, 1)
    return list_schedule(instance, by_rank(instance, ranks), fixed)
