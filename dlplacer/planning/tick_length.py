"""Ticks as fine as a problem's plans need.

A tick is a share of the time that all ops and transfers take at their slowest, one after another. One slow link, or one
op that takes hours on a device it had better not use, makes it longer than the ops of a good plan, all of which then
round to nothing. The makespan of any plan limits what a better one can hold.
"""

from dlplacer.check import violations
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.instance.outcome import Outcome, ProblemSchedule
from dlplacer.solvers.methods import schedules_by

_WIDE = 2**10
"""Horizon ÷ the least work of all ops from which ticks may be too long: a millionth of a step is the aim."""

_ROUNDS = 8
"""Plans found with finer ticks are shorter, and allow finer ones."""


def with_fine_ticks(problem: Problem) -> Problem:
    """The problem, in shorter ticks if its horizon is far above the plans that a first heuristic finds."""
    kinds = problem.topology.device_types
    work = sum(min(t for kind in kinds if (t := op.time_on(kind)) is not None) for op in problem.graph.ops)
    for _ in range(_ROUNDS):
        if float(problem.horizon * problem.tick_s) <= _WIDE * work:
            break
        reached_s = min(_plans_s(problem), default=None)
        if reached_s is None or (problem.reached_s is not None and reached_s > problem.reached_s / 2):
            break
        problem = build_problem(problem.graph, problem.topology, problem.options, reached_s)
    return problem


def _plans_s(problem: Problem) -> list[float]:
    """Makespans in seconds of each single device and of the first list schedule, as far as they pass every check."""
    schedules: list[ProblemSchedule | None] = [*singles(problem), next(schedules_by("list", problem), None)]
    found = []
    for schedule in schedules:
        if schedule is not None:
            plan = assemble(problem, Outcome(schedule, 0), schedule, "list", 0.0, {})
            if not violations(plan):
                found.append(plan.makespan_s)
    return found
