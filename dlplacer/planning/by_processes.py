"""Plans for cores as threads of one process and as processes of their own, of which the better is kept.

A machine may say what its links take in both ways (`dlplacer.problem.as_processes`). Where ops are short, threads take
turns at the interpreter and processes do not, but pay a copy for a tensor that crosses. Neither machine is a relaxation
of the other, so each gets a plan and a bound of its own, and no plan of either beats the lower of the bounds. A plan is
of the machine in its topology: that says which way it is meant to run.
"""

from collections.abc import Callable
from dataclasses import replace

from dlplacer.core.result import Result
from dlplacer.planning.assemble import with_bound
from dlplacer.planning.under_dispatch import surrogate
from dlplacer.problem.as_processes import as_processes
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.instance.outcome import Progress

SHARE = 0.4
"""Of the time, for the plan by processes; the rest is for threads, whose simulation takes longer."""


def problem_by_processes(problem: Problem) -> Problem | None:
    """The problem with a process for every core; None where the machine cannot, or its turns hardly cost anything."""
    machine = as_processes(problem.topology)
    if machine is None or surrogate(problem) is None:
        return None
    return build_problem(problem.graph, machine, problem.options)


def better(threads: Result | None, processes: Result | None) -> Result | None:
    """The result with the better plan, under the lower bound of both: without one of them, none."""
    found = [result for result in (threads, processes) if result is not None]
    if threads is None or processes is None:
        return replace(found[0], plan=with_bound(found[0].plan, 0.0), bounds={}) if found else None
    kept = min(found, key=lambda result: result.plan.makespan_s)
    bound_s = min(result.plan.lower_bound_s for result in found)
    names = threads.bounds.keys() & processes.bounds.keys()
    bounds = {name: min(result.bounds[name] for result in found) for name in sorted(names)}
    return replace(kept, plan=with_bound(kept.plan, bound_s), bounds=bounds)


def only_plans(report: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """A report without bounds: what bounds one of the ways need not bound the other."""
    return lambda progress: report(replace(progress, lower_bound_s=0.0))


def beside(found: Result | None, report: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """A report that counts what was found the other way: the better of the plans, the lower of the bounds."""
    if found is None:
        return only_plans(report)

    def tell(progress: Progress) -> None:
        own_s, plan = progress.makespan_s, found.plan
        best_s = plan.makespan_s if own_s is None else min(own_s, plan.makespan_s)
        report(replace(progress, makespan_s=best_s, lower_bound_s=min(progress.lower_bound_s, plan.lower_bound_s)))

    return tell
