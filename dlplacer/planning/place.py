"""Entry point of planning: a checked plan for a graph on a topology, with its bound and gap."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Event

from dlplacer.check import check_plan, violations
from dlplacer.core.errors import InputError, InternalError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.formats import plan_to_dict
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.roofline import with_issue
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.assemble import digests, problem_kept, provenance_of, rescaled, with_fine_ticks
from dlplacer.planning.constrain import constrained
from dlplacer.planning.garbage import fewer_collections
from dlplacer.planning.interrupt import plan_or_interrupt
from dlplacer.planning.one_device import single_device_s
from dlplacer.planning.result import Result
from dlplacer.planning.under_dispatch import best_plan
from dlplacer.planning.warm_start import WarmStart
from dlplacer.problem.dispatch import dispatch_of, least_step_s
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds import critical_path, whole_area
from dlplacer.solvers.feasibility import require_feasible, require_size, shortage
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Budget, Progress
from dlplacer.solvers.instance.time_limit import counting_work, counts_work, in_thread, now
from dlplacer.solvers.methods import DEFAULT_METHOD, left_out, require_method

_MOST_WORKERS = 10_000
"""Limit on workers, above that of any machine; CP-SAT would try to start more threads."""

_SHORT_S, _MOST_GRACE_S = 5.0, 1.25
"""Time limit below which a first schedule may be late, and its largest delay. A list schedule of 2,000 ops on eight
devices takes 0.7 s, but a limit of one second would leave half of that time."""

_FINISH_FACTOR, _FINISH_SHARE = 2.0, 0.5
"""Time to finish ÷ time to prepare (1.3 to 2.1 for 106,000 ops), and its largest share of the remaining time."""


@fewer_collections()
def place(
    graph: OpGraph,
    topology: Topology,
    options: Options | None = None,
    *,
    method: str = DEFAULT_METHOD,
    time_limit_s: float = 60.0,
    work_s: float | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop: Event | None = None,
    pins: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    colocate: Iterable[str | Iterable[str]] = (),
    warm_start: Plan | None = None,
    issue: str = "none",
    without: Iterable[str] = (),
) -> Result:
    """The best plan found for a graph on a machine, with a lower bound and a gap.

    `time_limit_s`: Seconds for the whole call, including building the model. With a limit below 5 s, a first plan may
    be about a second late. `work_s`: A limit on one worker's work, about in seconds, instead of time; plan and bound
    are then the same on every machine. `stop`: Set it to end early with the best plan; the first Ctrl-C does the same
    unless the caller handles SIGINT. `pins`, `colocate`: Op, module or glob → device, and sets of ops that share a
    device: see `dlplacer.planning.constrain.constrained`. Speedups refer to the best device without such constraints.
    `warm_start`: An initial plan for method ``ilp``, of the same problem or of another graph, machine or granularity
    with common ops. The result is never worse than the plan that `dlplacer.planning.warm_start` derives from it;
    ``provenance["warm_start"]`` describes that plan.

    Raises InputError if an op has no time on an allowed device, an argument is out of range, or the graph is too large;
    InfeasibleError, with the constraint to blame, if no plan can exist; NoPlanError if none was found in time;
    CheckError if the warm start breaks a rule of its own problem; KeyboardInterrupt at a Ctrl-C before the first plan,
    or at a second one.
    """
    if work_s is not None:
        if workers not in (None, 1):
            raise InputError(f"workers is {workers}; work in place of a time limit is done by one worker")
        time_limit_s, workers = work_s, 1
    options, topology = options or Options(), with_issue(topology, issue)
    require_method(method, options.objective)
    _require_arguments(method, time_limit_s, gap, workers, warm_start)
    if dispatch_of(topology).delays:
        options.require_makespan("a topology with issue costs (dispatch_s)")
    if warm_start is not None:
        options.require_makespan("a warm start")
        check_plan(warm_start)
    omitted, stop = left_out(without), stop or Event()
    with nullcontext() if work_s is None else counting_work():
        began = now()

        def is_stopped() -> bool:
            if stop.is_set():
                raise NoPlanError("the solve was stopped before its search began, so there is no plan")
            return False

        # In a thread, which is abandoned at a stop, because preparing 100,000 ops takes ten seconds.
        preparing = partial(prepared, graph, topology, options, pins, colocate)
        problem = in_thread(preparing, math.inf, is_stopped, lambda: None)
        # A good plan soon after a short limit is better than none.
        grace_s = _MOST_GRACE_S * max(0.0, 1 - time_limit_s / _SHORT_S)
        threads = workers or len(usable_cores())
        budget = Budget(began, gap, seed, threads, stop, grace_s=grace_s, without=omitted)
        return solved(problem, method, budget, time_limit_s, on_progress, warm_start)


def prepared(
    graph: OpGraph,
    topology: Topology,
    options: Options,
    pins: Mapping[str, str] | Iterable[tuple[str, str]],
    colocate: Iterable[str | Iterable[str]],
) -> Problem:
    """The problem in integers that a method solves; raises InfeasibleError if a simple reason rules out every plan."""
    require_size(graph)
    held = constrained(graph, topology, pins, colocate)
    problem = build_problem(with_times(held, topology), topology, options)
    require_feasible(problem)
    digests(problem)
    return with_fine_ticks(problem)


def solved(
    problem: Problem,
    method: str,
    budget: Budget,
    time_limit_s: float,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    warm_start: Plan | None = None,
) -> Result:
    """The best plan of a problem that a method finds in time; errors as in `place`.

    `budget`: Its deadline is the time when the solve began; the time limit counts from there.
    """
    began = budget.deadline
    prepare_s, tick_s = now() - began, problem.tick_s
    # Replaying and checking the plan takes about as long as building the problem. For a small problem, importing
    # libraries takes most of that time, so 1 ms per op is enough on any machine.
    finish_s = min(_FINISH_FACTOR * prepare_s, 0.02 + 1e-3 * problem.op_count)
    finish_s = min(finish_s, _FINISH_SHARE * max(0.0, time_limit_s - prepare_s))

    def report(makespan: int | None, bound: int) -> None:
        found_s = None if makespan is None else float(makespan * tick_s)
        on_progress(Progress(found_s, float(bound * tick_s), now() - began))

    budget = replace(budget, deadline=began + time_limit_s - finish_s, report=report)
    with plan_or_interrupt(budget.stop), problem_kept(problem):
        plan = _checked(problem, method, budget, time_limit_s, warm_start)
        may_again = method == DEFAULT_METHOD and problem.options.objective == "makespan"
        while may_again and budget.left_s and (finer := rescaled(problem, plan)) is not None:
            problem = finer
            plan = _checked(problem, method, budget, time_limit_s, plan)
    alone_s, plan = single_device_s(problem), replace(plan, solve_s=now() - began)
    return Result(plan, alone_s, _simple_bounds(problem))


def _checked(problem: Problem, method: str, budget: Budget, time_limit_s: float, begin: Plan | None) -> Plan:
    """The best valid plan found until the deadline of the budget."""
    warm = None if begin is None else WarmStart(problem, begin)
    plan, outcome = best_plan(problem, method, budget, None if warm is None else warm.begin)
    work = {"work_s": time_limit_s} if counts_work() else {}
    provenance = provenance_of(problem, seed=budget.seed, workers=budget.workers, **work)
    if warm is not None:
        provenance["warm_start"] = warm.note
        plan = warm.if_better(plan, outcome, method, provenance)
    if plan is None:
        raise _no_plan(problem, method, time_limit_s)
    plan = replace(plan, method=method, provenance=provenance)
    if broken := violations(plan):
        raise InternalError(
            "the solver's plan breaks the rules: " + "; ".join(map(str, broken[:3])), plan=plan_to_dict(plan)
        )
    return plan


def _no_plan(problem: Problem, method: str, time_limit_s: float) -> NoPlanError:
    short = shortage(problem)
    reason = "" if short is None else f": {short}"
    others = "" if method == DEFAULT_METHOD else f"use method {DEFAULT_METHOD!r}, "
    room = "" if short is None else ", use a topology with more memory, or a smaller batch"
    spent, more = ("s of work", "--work") if counts_work() else ("s", "--time-limit")
    return NoPlanError(
        f"method {method!r} found no plan within {time_limit_s:g} {spent}{reason}; one may exist: "
        f"{others}raise {more}{room}"
    )


def _simple_bounds(problem: Problem) -> dict[str, float]:
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    bounds = {"area_s": whole_area(instance) * tick_s}
    if problem.options.objective == "makespan":
        bounds = {"critical_path_s": critical_path(instance) * tick_s, **bounds}
    dispatch = dispatch_of(problem.topology)
    return bounds | ({"dispatch_s": least_step_s(problem, dispatch)} if dispatch.delays else {})


def _require_arguments(
    method: str, time_limit_s: float, gap: float, workers: int | None, warm_start: Plan | None
) -> None:
    if not 0 < time_limit_s < math.inf:
        raise InputError(f"time limit is {time_limit_s:g} s; it must be positive and finite")
    if not 0 <= gap < 1:
        raise InputError(f"gap is {gap:g}; it must be at least 0 and below 1 (0.01 is one percent)")
    if workers is not None and not 1 <= workers <= _MOST_WORKERS:
        raise InputError(f"workers is {workers}; it must be at least 1 and at most {_MOST_WORKERS}")
    if warm_start is not None and method != DEFAULT_METHOD:
        raise InputError(f"a warm start is for method {DEFAULT_METHOD!r}, which improves it; {method!r} takes none")
