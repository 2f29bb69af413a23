"""Ticks as fine as a problem's plans need.

A tick is a share of the time that all ops and transfers take at their slowest, one after another. One slow link, or one
op that takes hours on a device it had better not use, makes it longer than the ops of a good plan, all of which then
round to nothing. The makespan of any plan limits what a better one can hold.
"""

from dlplacer.core.plan import Plan
from dlplacer.planning.assemble import NEGLIGIBLE, in_seconds
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.methods import schedules_by

_WIDE = 2**10
"""Horizon ÷ the least work of all ops from which ticks may be too long: a millionth of a step is the aim."""

_NEAR, _FARTHER, _ROUNDS = 2**6, 2**8, 4
"""The first limit ÷ the least work, the factor from one limit to the next, and how many are tried."""


def with_fine_ticks(problem: Problem) -> Problem:
    """The problem, in shorter ticks if its horizon is far above its plans.

    The makespan of a plan of first heuristics, found in ticks for plans of about the work of all ops, limits what
    counts. Where they find none, as memory is short, that work itself does.
    """
    work_s = _work_s(problem)
    if float(problem.horizon * problem.tick_s) <= _WIDE * work_s or not work_s:
        return problem
    limit_s, shortest_s = _NEAR * work_s, 0.0
    for _ in range(_ROUNDS):
        plans_s = _plans_s(_limited(problem, limit_s))
        if not plans_s:
            return _limited(problem, _NEAR * work_s)
        shortest_s = min(plans_s)
        if shortest_s <= limit_s:
            break
        limit_s *= _FARTHER
    return _limited(problem, shortest_s)


def rescaled(problem: Problem, plan: Plan) -> Problem | None:
    """The problem in ticks that suit schedules no longer than a plan; None if its own ticks do."""
    if problem.reached_s is not None and plan.makespan_s > problem.reached_s:
        return _limited(problem, plan.makespan_s)
    if plan.rounding_s <= NEGLIGIBLE * plan.makespan_s:
        return None
    finer = _limited(problem, plan.makespan_s)
    return finer if 2 * finer.tick_s < problem.tick_s else None


def _limited(problem: Problem, limit_s: float) -> Problem:
    return build_problem(problem.graph, problem.topology, problem.options, limit_s)


def _work_s(problem: Problem) -> float:
    """Seconds of all ops where each is fastest."""
    kinds = problem.topology.device_types
    return sum(min(t for kind in kinds if (t := op.time_on(kind)) is not None) for op in problem.graph.ops)


def _plans_s(problem: Problem) -> list[float]:
    """About the makespans of single devices, or of the first list schedule if none of them holds all ops."""
    homes = {problem.topology.devices[single.device[0]].type for single in singles(problem)}
    if homes:
        return [sum(op.time_on(kind) or 0.0 for op in problem.graph.ops) for kind in homes]
    found = next(schedules_by("list", problem), None)
    return [] if found is None else [max(entry.end_s for entry in in_seconds(problem, found)[0])]
