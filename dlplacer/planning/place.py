"""The front door of planning: graph and topology in, checked plan with its bound and gap out."""

import contextlib
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from operator import attrgetter
from threading import Event
from typing import Any, TypeVar

from dlplacer.check import check_plan, violations
from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError, InternalError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
from dlplacer.files.plan_file import plan_to_dict
from dlplacer.machines.costs.issue import with_issue
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.planning.assemble import assemble
from dlplacer.planning.constrain import constrained
from dlplacer.planning.garbage import fewer_collections
from dlplacer.planning.interrupt import interrupts_by_exception, stop_on_interrupt
from dlplacer.planning.saved_problem import saving_problem
from dlplacer.planning.tick_length import rescaled, with_fine_ticks
from dlplacer.planning.under_dispatch import Heuristic, best_under_dispatch
from dlplacer.planning.warm_start import warm_start_of
from dlplacer.problem.dispatch import dispatch_of, least_step_s
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.bounds.bounds import critical_path, whole_area
from dlplacer.solvers.feasibility.explanation import shortage
from dlplacer.solvers.feasibility.graph_size import require_size
from dlplacer.solvers.feasibility.simple_reasons import require_feasible
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.incumbent import Begin
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule, Progress
from dlplacer.solvers.methods import DEFAULT_METHOD, LOADS_S, METHODS, STARTS, schedules_by, solve_from

_MOST_WORKERS = 10_000
"""More threads than any machine has; CP-SAT would try to start them."""

_SHORT_S, _MOST_GRACE_S = 5.0, 1.25
"""Limits below which a first schedule may be late, and by how much at most: a list schedule of 2,000 ops on eight
devices takes 0.7 s, of which a limit of one second would leave it half."""

Found = TypeVar("Found")

_FINISH_FACTOR, _FINISH_SHARE = 2.5, 0.5
"""Time to finish ÷ time to prepare: 1.3 to 2.5 on 106,000 ops; and the most of what is left that it gets."""


@fewer_collections()
@saving_problem
def place(
    graph: OpGraph,
    topology: Topology,
    options: Options | None = None,
    *,
    method: str = DEFAULT_METHOD,
    time_limit_s: float = 60.0,
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

    Parameters
    ----------
    options
        What to assume; None means the defaults of `Options`, `Options.paper()` the paper's equations 7–13.
    method
        A key of `dlplacer.solvers.methods.METHODS`; the bound is the best known to any of them.
    time_limit_s
        Seconds for the whole call, building the model included. Below 5 s a first plan may be up to a second late.
    gap
        Stop when (makespan − bound) ÷ makespan is at most this.
    workers
        Threads of the solver; None takes the cores this process may use.
    stop
        Set it from another thread or a signal handler to end early with the best plan. The first Ctrl-C does the same,
        unless the caller handles SIGINT in a way of its own.
    pins, colocate
        Op, module or glob → device, and sets of ops that stay together: see `dlplacer.planning.constrain.constrained`.
        Speedups refer to the best single device without them.
    warm_start
        A plan to begin with, for method ``ilp``: of the same problem, or of another graph, machine or granularity with
        ops in common. The result is never worse than what `dlplacer.planning.warm_start` makes of it;
        ``provenance["warm_start"]`` tells what that was.

    issue
        ``eager``: one process of eager PyTorch issues all ops, where the topology does not say what issuing costs.
    without
        Names of phases (`dlplacer.solvers.phases.PHASES`) and heuristics that the default method leaves out.

    Raises
    ------
    InputError
        If an op has no time on an allowed device, an argument is out of range, or the graph is too large to be planned.
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    NoPlanError
        If none was found in time.
    CheckError
        If the warm start breaks a rule of its own problem.
    KeyboardInterrupt
        At a Ctrl-C before the first plan, or at a second one.
    """
    began = time.monotonic()
    _require_arguments(method, time_limit_s, gap, workers)
    if warm_start is not None and method != DEFAULT_METHOD:
        raise InputError(f"a warm start is for method {DEFAULT_METHOD!r}, which improves it; {method!r} takes none")
    if warm_start is not None:
        check_plan(warm_start)
    stop, topology = stop or Event(), with_issue(topology, issue)
    problem = _unless_stopped(stop, partial(_prepared, graph, topology, options or Options(), pins, colocate))
    finish_s = _finish_s(problem, time.monotonic() - began, time_limit_s)
    deadline, threads = began + time_limit_s - finish_s, workers or len(usable_cores())
    budget = Budget(deadline, gap, seed, threads, stop, grace_s=_grace_s(time_limit_s), without=frozenset(without))
    budget = replace(budget, report=partial(_tell, on_progress, float(problem.tick_s), began))
    with _plan_or_interrupt(budget.stop):
        found = _solved(problem, budget, method, warm_start, time_limit_s)
        while method == DEFAULT_METHOD and budget.left_s and (again := rescaled(problem, found.plan)) is not None:
            problem = again
            found = replace(found, plan=_solved(problem, budget, method, found.plan, time_limit_s).plan)
    return replace(found, plan=replace(found.plan, solve_s=time.monotonic() - began))


def _prepared(
    graph: OpGraph,
    topology: Topology,
    options: Options,
    pins: Mapping[str, str] | Iterable[tuple[str, str]],
    colocate: Iterable[str | Iterable[str]],
) -> Problem:
    """The problem, for which no simple reason rules out a plan."""
    require_size(graph)
    held = constrained(graph, topology, pins, colocate)
    problem = build_problem(with_times(held, topology), topology, options)
    require_feasible(problem)
    _digests(problem)
    return with_fine_ticks(problem)


def _unless_stopped(stop: Event, work: Callable[[], Found]) -> Found:
    """Run `work` in a thread, which is left behind if somebody asks to stop: 100,000 ops take it ten seconds."""

    def look() -> bool:
        if stop.is_set():
            raise NoPlanError("the solve was stopped before its search began, so there is no plan")
        return False

    return in_thread(work, math.inf, look, lambda: None)


def _solved(problem: Problem, budget: Budget, method: str, warm_start: Plan | None, time_limit_s: float) -> Result:
    """The best plan found until the deadline of the budget."""
    warm = None if warm_start is None else warm_start_of(problem, warm_start)
    provenance = provenance_of(problem, seed=budget.seed, workers=budget.workers)
    planned = _under_dispatch if dispatch_of(problem.topology).delays else _in_ticks
    plan, outcome = planned(problem, method, None if warm is None else warm.begin, budget, time_limit_s)
    plan = replace(plan, method=method, provenance=provenance)
    if warm is not None:
        plan = replace(plan, provenance={**plan.provenance, "warm_start": warm.note})
        plan = warm.if_better(plan, outcome)
    _require_rules(plan)
    return Result(plan, single_device_s(problem), _simple_bounds(problem))


def _tell(
    on_progress: Callable[[Progress], None], tick_s: float, began: float, makespan: int | None, bound: int
) -> None:
    found_s = None if makespan is None else makespan * tick_s
    on_progress(Progress(found_s, bound * tick_s, time.monotonic() - began))


def _in_ticks(
    problem: Problem, method: str, begin: Begin | None, budget: Budget, time_limit_s: float
) -> tuple[Plan, Outcome]:
    """The plan of the schedule that a method finds, and what it found."""
    solve = METHODS[method] if begin is None else partial(solve_from, begin)
    outcome = solve(problem, budget)
    schedule = _require_schedule(problem, outcome, method, time_limit_s)
    return assemble(problem, outcome, schedule, method, 0.0, {}), outcome


def _under_dispatch(
    problem: Problem, method: str, begin: Begin | None, budget: Budget, time_limit_s: float
) -> tuple[Plan, Outcome]:
    """The best simulated plan of a method, and the bound without dispatch."""
    again = _single_under_dispatch if method == "single" else METHODS[method]
    solve = again if begin is None else partial(solve_from, begin)
    is_default = method == DEFAULT_METHOD
    names = STARTS if is_default else ()
    heuristics = [Heuristic(partial(schedules_by, name), LOADS_S.get(name, 0.0)) for name in names]
    candidates = best_under_dispatch(problem, solve, again, budget, heuristics, combine=is_default)
    return _require_plan(problem, candidates.best, method, time_limit_s), Outcome(None, candidates.bound)


def _require_rules(plan: Plan) -> None:
    broken = violations(plan)
    if broken:
        raise InternalError(
            "the solver's plan breaks the rules: " + "; ".join(map(str, broken[:3])), plan=plan_to_dict(plan)
        )


def single_device_s(problem: Problem) -> float | None:
    """Seconds of all ops on the best single device, wherever the user pins them; None where they fit on none."""
    free = problem
    if problem.graph.constraints:
        unpinned = replace(problem.graph, constraints=Constraints())
        try:
            free = build_problem(with_times(unpinned, problem.topology), problem.topology, problem.options)
        except InputError:
            # An op that is pinned needs a time on its own device alone.
            return None
    found = singles(free)
    if dispatch_of(free.topology).delays:
        return min((_dispatched_s(free, single) for single in found), default=None)
    types = {free.topology.devices[single.device[0]].type for single in found}
    return min((sum(op.time_on(name) or 0.0 for op in free.graph.ops) for name in types), default=None)


def _dispatched_s(problem: Problem, single: ProblemSchedule) -> float:
    """Seconds of a schedule on one device, which waits for its process."""
    return max(entry.end_s for entry in replay(problem, single.device, single.order)[0])


def _single_under_dispatch(problem: Problem, budget: Budget) -> Outcome:
    """The single device that is best when it waits for its process: another one may be best when none does."""
    best = min(singles(problem), key=partial(_dispatched_s, problem), default=None)
    return replace(METHODS["single"](problem, budget), schedule=best)


def _finish_s(problem: Problem, prepare_s: float, time_limit_s: float) -> float:
    """Seconds to keep for replaying and checking the plan, which take about as long as making the problem did."""
    # What a small problem took is mostly the import of libraries; 1 ms for each op is enough on any machine.
    expected_s = min(_FINISH_FACTOR * prepare_s, 0.02 + 1e-3 * problem.op_count)
    return min(expected_s, _FINISH_SHARE * max(0.0, time_limit_s - prepare_s))


def _grace_s(time_limit_s: float) -> float:
    """Seconds that a first schedule may be late: a good plan soon after a short limit is worth more than none."""
    return _MOST_GRACE_S * max(0.0, 1 - time_limit_s / _SHORT_S)


@contextlib.contextmanager
def _plan_or_interrupt(stop: Event) -> Iterator[None]:
    """Have a Ctrl-C stop the search, so that it costs no plan that is there; without one it is a KeyboardInterrupt."""
    if not interrupts_by_exception():
        yield
        return
    interrupted = Event()
    with stop_on_interrupt(stop, interrupted.set):
        try:
            yield
        except NoPlanError:
            if interrupted.is_set():
                raise KeyboardInterrupt from None
            raise


def _require_schedule(problem: Problem, outcome: Outcome, method: str, time_limit_s: float) -> ProblemSchedule:
    found = _require_plan(problem, outcome.schedule, method, time_limit_s)
    if outcome.lower_bound > found.makespan:
        raise InternalError(
            f"the lower bound of {outcome.lower_bound} ticks is above the makespan of {found.makespan} "
            "ticks of a schedule; please report it",
            bound_ticks=outcome.lower_bound,
            device=list(found.device),
            start_ticks=list(found.start),
        )
    return found


def _require_plan(problem: Problem, found: Found | None, method: str, time_limit_s: float) -> Found:
    if found is None:
        short = shortage(problem)
        reason = "" if short is None else f": {short}"
        others = "" if method == DEFAULT_METHOD else f"use method {DEFAULT_METHOD!r}, "
        room = "" if short is None else ", use a topology with more memory, or a smaller batch"
        raise NoPlanError(
            f"method {method!r} found no plan within {time_limit_s:g} s{reason}; one may exist: "
            f"{others}raise --time-limit{room}"
        )
    return found


def _simple_bounds(problem: Problem) -> dict[str, float]:
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    bounds = {"critical_path_s": critical_path(instance) * tick_s, "area_s": whole_area(instance) * tick_s}
    dispatch = dispatch_of(problem.topology)
    return bounds | ({"dispatch_s": least_step_s(problem, dispatch)} if dispatch.delays else {})


def _require_arguments(method: str, time_limit_s: float, gap: float, workers: int | None) -> None:
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; use one of {', '.join(METHODS)}")
    if not 0 < time_limit_s < math.inf:
        raise InputError(f"time limit is {time_limit_s:g} s; it must be positive and finite")
    if not 0 <= gap < 1:
        raise InputError(f"gap is {gap:g}; it must be at least 0 and below 1 (0.01 is one percent)")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; it must be at least 1")
    if workers is not None and workers > _MOST_WORKERS:
        raise InputError(f"workers is {workers}; at most {_MOST_WORKERS} threads are of use to the solver")


def provenance_of(problem: Problem, **choices: int) -> dict[str, Any]:
    """What a plan was made with: versions, the choices given here, hashes of graph and topology."""
    from importlib.metadata import version

    return {
        "dlplacer": __version__,
        "ortools": version("ortools"),
        "python": platform.python_version(),
        **choices,
        **_digests(problem),
    }


def _digests(problem: Problem) -> dict[str, str]:
    if _digests not in problem.derived:
        problem.derived[_digests] = {
            "graph_sha256": _digest(problem.graph),
            "topology_sha256": _digest(problem.topology),
        }
    return problem.derived[_digests]  # type: ignore[no-any-return]


def _digest(value: OpGraph | Topology) -> str:
    """The hash of all that a graph or topology holds."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_held_by).encode()).hexdigest()


def _held_by(value: Any) -> Any:
    """The fields of a dataclass, or the entries of a mapping, as JSON knows them."""
    return dict(value) if isinstance(value, Mapping) else _fields_of(value.__class__)(value)


@cache
def _fields_of(kind: type) -> Callable[[Any], Any]:
    return attrgetter(*(each.name for each in fields(kind)))
