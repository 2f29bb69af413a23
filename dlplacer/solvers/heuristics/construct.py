"""First schedules: a rule on the free problem and, where it runs out of memory, on a placement that fits."""

from collections.abc import Callable

from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.list_rules import by_rank, upward_ranks
from dlplacer.solvers.heuristics.occupancy import Fixed, Priority, choose_components, pack
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import OutOfTimeError

Rule = Callable[[Instance, Priority, Fixed], Schedule | None]
"""A heuristic; None if an op fits on no device that it may use."""

DELAY_WEIGHTS = (1.0, 0.5, 0.0)
"""Factors on the delays in upward ranks, of which the best schedule counts: HEFT's own rank takes every arc to cross
devices, which overrates delays where most arcs do not; 0 ranks by work alone."""


def construct(instance: Instance, rule: Rule, fixed: Fixed = None) -> Schedule | None:
    """The best schedule of a rule over several ranks, or None if it always runs out of memory.

    Where the free rule fails, it orders the ops on a placement packed for memory.
    """
    limited = choose_components(instance)
    found = _best(limited, rule, fixed)
    if found is None and fixed is None:
        # Worst fit decreasing finds room where a rule that follows time has used it up.
        packed = pack(limited)
        found = None if packed is None else _best(instance, rule, packed)
    return found


def construct_on_placement(problem: Problem, instance: Instance, rule: Rule, seconds: float) -> Schedule | None:
    """The best schedule of a rule on a placement found by search over placements alone, or None.

    Raises
    ------
    InfeasibleError
        If no placement exists.
    """
    from dlplacer.solvers.feasibility.reasons import require_placement

    placement = require_placement(problem, seconds)
    if placement is None:
        return None
    fixed = [placement[ops[0]] if ops[0] < problem.op_count else -1 for ops in instance.members]
    return _best(instance, rule, fixed)


def _best(instance: Instance, rule: Rule, fixed: Fixed) -> Schedule | None:
    """Over all ranks, or those that there is time for if that is one."""
    found: list[Schedule] = []
    for weight in DELAY_WEIGHTS:
        try:
            one = rule(instance, by_rank(instance, upward_ranks(instance, weight)), fixed)
        except OutOfTimeError:
            # On 6,000 ops a list schedule takes a second: one that is there is not thrown away for the next.
            if not found:
                raise
            break
        if one is not None:
            found.append(one)
    return min(found, key=lambda one: one.makespan, default=None)
