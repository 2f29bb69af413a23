"""Plans for cores as threads of one process and as processes of their own, of which the better is kept.

A machine may say what its links take in both ways (`dlplacer.problem.as_processes`). Where ops are short, threads take
turns at the interpreter and processes do not, but pay a copy for a tensor that crosses. Neither machine is a relaxation
of the other, so each gets a plan and a bound of its own, and no plan of either beats the lower of the bounds. A plan is
of the machine in its topology: that says which way it is meant to run.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from dlplacer.core.plan import Plan
from dlplacer.core.result import Result
from dlplacer.planning.under_dispatch import comparable_s, surrogate
from dlplacer.problem.as_processes import as_processes
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.instance.outcome import Progress


@dataclass(frozen=True)
class ProcessParams:
    """When a plan by processes is looked for, and when it is kept.

    Attributes
    ----------
    share
        Of the time, for that plan; the rest is for threads, whose simulation takes longer.
    least_gain
        By how much it must beat the plan by threads: processes cost memory, `dlplacer.apply` with ``processes="auto"``
        uses them only where a step gains, and planned steps of short ops are off by up to a tenth.
    longer_handover
        As much longer, in proportion, it takes cores to hand a tensor over where that is decided: a chain that does
        nothing else has the code and the memory for it at hand. In steps of an attention GRU writing took 12 µs where
        half of a hand-over in the chain took 5, and two processes that were planned 0.73 times as long as one core took
        1.1 to 1.3 times as long.
    """

    share: float = 0.4
    least_gain: float = 0.1
    longer_handover: float = 1.0


PARAMS = ProcessParams()


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
        return replace(found[0], plan=_with_bound(found[0].plan, 0.0), bounds={}) if found else None
    processes_s = comparable_s(processes.plan) + PARAMS.longer_handover * _handing_over_s(processes.plan)
    threads_s = comparable_s(threads.plan)
    gains = processes_s < (1 - PARAMS.least_gain) * threads_s
    kept = processes if gains else threads
    bound_s = min(result.plan.lower_bound_s for result in found)
    names = threads.bounds.keys() & processes.bounds.keys()
    bounds = {name: min(result.bounds[name] for result in found) for name in sorted(names)}
    return replace(kept, plan=_with_bound(kept.plan, bound_s), bounds=bounds)


def _handing_over_s(plan: Plan) -> float:
    """Seconds in which the core that hands over most is busy with that."""
    counts = Counter(moved.target for moved in plan.transfers)
    counts.update(plan.placement[moved.source] for moved in plan.transfers)
    return max(counts[device.id] * (device.dispatch_s or 0.0) for device in plan.topology.devices)


def _with_bound(plan: Plan, bound_s: float) -> Plan:
    if bound_s >= plan.lower_bound_s or not plan.makespan_s:
        return plan
    gap = (plan.makespan_s - bound_s) / plan.makespan_s
    return replace(plan, lower_bound_s=bound_s, gap=gap, status="feasible" if gap else "optimal")


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
