"""The methods by name. Every outcome carries a lower bound, so every method reports a gap."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dlplacer.core.errors import InputError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import critical_path, lower_bounds, whole_area
from dlplacer.solvers.feasibility import EXACT_UP_TO
from dlplacer.solvers.heuristics.contiguous import by_module, contiguous
from dlplacer.solvers.heuristics.device_map import balanced, sequential
from dlplacer.solvers.heuristics.list_rules import Heuristic, construct, construct_on_placement, heft, list_schedule
from dlplacer.solvers.heuristics.min_cut import min_cut
from dlplacer.solvers.heuristics.occupancy import Fixed, Priority
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, attempts, best_admitted
from dlplacer.solvers.instance.schedule import Begin, Budget, Incumbent, Outcome, ProblemSchedule, Schedule
from dlplacer.solvers.instance.time_limit import within
from dlplacer.solvers.starts import StartMethod
from dlplacer.solvers.throughput import solve_throughput

_BOUND_SHARE = 0.2
"""Share of the time limit for the bound beside a heuristic's plan: 0.3 s suffice for 2,000 ops."""

_PLACEMENT_SHARE = 0.5
"""Of the time that is left, for a placement by search where a heuristic runs out of memory; never tuned."""


def solve_from(begin: Begin, problem: Problem, budget: Budget) -> Outcome:
    """The default method, begun with the schedules and the bound that `begin` finds in the budget."""
    from dlplacer.solvers.default_method import solve_ilp

    starts = [
        StartMethod(cost, partial(start_named, method))
        for method, cost in _STARTS.items()
        if method not in budget.without
    ]
    return solve_ilp(problem, budget, starts, begin)


def _ilp(problem: Problem, budget: Budget) -> Outcome:
    return solve_from(lambda instance, incumbent: None, problem, budget)


def start_named(method: str, problem: Problem, instance: Instance) -> Schedule | None:
    try:
        return construct(_seen_by(method, problem, instance), _rule(method, problem))
    except InputError:
        return None


def _single(problem: Problem, budget: Budget) -> Outcome:
    bound = _bound(build_instance(problem), budget, _BOUND_SHARE * budget.left_s)
    return Outcome(best_single(problem), bound)


def _dlplacer(problem: Problem, budget: Budget) -> Outcome:
    """The best schedule that CP-SAT finds of the paper's own program, timed under the problem's rules."""
    from dlplacer.solvers.feasibility import explain_infeasible
    from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
    from dlplacer.solvers.ilp.dlplacer_model import build_dlplacer_model

    built = within(lambda: not budget.left_s, partial(build_dlplacer_model, problem))
    if built is None:
        return Outcome(None, 0)
    instance = build_instance(problem)
    incumbent = Incumbent(budget, admission(problem, instance))
    if search(built.model, built.variables, instance, incumbent, budget.left_s) is SearchEnd.INFEASIBLE:
        raise explain_infeasible(problem)
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def schedules_by(method: str, problem: Problem) -> Iterator[ProblemSchedule | None]:
    """The plans that a heuristic makes of a problem, then of surrogates; None for a schedule that is no plan.

    Without a placement by search.

    Raises
    ------
    InputError
        If the method needs a package that is not installed.
    """
    instance, own = build_instance(problem), _rule(method, problem)

    def rule(surrogate: Instance) -> Schedule | None:
        return construct(_seen_by(method, problem, surrogate), own)

    for attempt in attempts(problem, instance, rule):
        plan = attempt.schedule if attempt.admitted else None
        yield None if plan is None else ProblemSchedule.of(problem, instance, plan)


def _heuristic(problem: Problem, budget: Budget, method: str) -> Outcome:
    instance, bound_s = build_instance(problem), _BOUND_SHARE * budget.left_s
    found = run_rule(problem, instance, method, budget, bound_s)
    bound = _bound(instance, budget, bound_s)
    budget.report(None if found is None else found.makespan, bound)
    schedule = None if found is None else ProblemSchedule.of(problem, instance, found)
    return Outcome(schedule, bound)


def _bound(instance: Instance, budget: Budget, seconds: float) -> int:
    """The best of all combinatorial bounds, or the simple ones where somebody asks to stop."""
    bounds = within(budget.stop.is_set, partial(lower_bounds, instance, min(seconds, budget.left_s)))
    return max(critical_path(instance), whole_area(instance)) if bounds is None else bounds.makespan


RULES: dict[str, Heuristic] = {
    "list": list_schedule,
    "heft": heft,
    "min-cut": min_cut,
    "contiguous": contiguous,
}
"""Heuristic → the rule that places and orders."""

DEVICE_MAPS: dict[str, Callable[[Problem], Heuristic]] = {"sequential": sequential, "balanced": balanced}
"""Heuristic → what makes the rule of a problem, whose graph knows modules and weights."""

HEURISTICS = (*RULES, *DEVICE_MAPS)

_STARTS = {"list": 1.0, "heft": 2.0, "min-cut": 0.4, "contiguous": 4.0, "balanced": 0.3, "sequential": 0.3}
"""Heuristic that the default method starts from → about how long it takes, in list schedules, at most.

A list schedule comes first, as the others are foretold by it; then what finds most in its time.
"""

STARTS = tuple(_STARTS)
"""These heuristics, in the order in which they are asked."""

DEFAULT_METHOD = "ilp"

METHODS: dict[str, Callable[[Problem, Budget], Outcome]] = {
    DEFAULT_METHOD: _ilp,
    **{method: partial(_heuristic, method=method) for method in HEURISTICS},
    "single": _single,
    "dlplacer": _dlplacer,
}
"""Method → solver; the first is the default."""

SOLVERS: dict[str, dict[str, Callable[[Problem, Budget], Outcome]]] = {
    "makespan": METHODS,
    "throughput": {DEFAULT_METHOD: solve_throughput},
    "max-load": {DEFAULT_METHOD: solve_throughput},
}
"""Objective → method → its solver, whose bound is on the objective's value in ticks."""


def require_method(method: str, objective: str) -> None:
    """Raise InputError unless a method of this name solves the objective."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; use one of {', '.join(METHODS)}")
    known = SOLVERS[objective]
    if method not in known:
        raise InputError(
            f"method {method!r} does not solve objective {objective!r}; use {', '.join(known)}, or objective makespan"
        )


def parts_named(names: Iterable[str]) -> frozenset[str]:
    """Names of phases and heuristics; raises InputError for one that is of none."""
    found = frozenset(names)
    if found:
        from dlplacer.solvers.phases import PHASES

        known = [*dict.fromkeys(phase.name for phase in PHASES), *STARTS]
        for name in sorted(found.difference(known)):
            raise InputError(f"there is nothing {name!r} to leave out; use some of {', '.join(known)}")
    return found


def compared(problem: Problem) -> tuple[str, ...]:
    """The methods that make sense of a problem: the paper's own program for a few ops with delays of eq. 11 alone."""
    as_written = problem.op_count <= EXACT_UP_TO and problem.options.delay == "store-and-forward"
    return tuple(method for method in METHODS if as_written or method != "dlplacer")


SUMMARIES = {
    DEFAULT_METHOD: "all heuristics, then bounds, segments, annealing and the integer program (default)",
    "list": "list scheduling by upward rank; no device idles while an op could run on it",
    "heft": "heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002)",
    "min-cut": "balanced partition of least cut (METIS)",
    "sequential": "modules fill device after device, as a sequential Hugging Face device_map",
    "balanced": "equal shares of the weights by modules in order, as a balanced Hugging Face device_map",
    "contiguous": "one run of consecutive layers for each device (Tarnawski et al. 2020)",
    "single": "all on the best single device",
    "dlplacer": "the paper's integer program as it is written, eq. 7 to 13, for small graphs (Pal et al. 2019)",
}
"""Method → what it does, in a line."""


def run_rule(
    problem: Problem, instance: Instance, method: str, budget: Budget, spared_s: float = 0.0
) -> Schedule | None:
    """The best schedule of a heuristic that there is time for; None if it runs out of time or of memory.

    Where it runs out of memory it is asked again, on tighter surrogates and on a placement found by search. It gives
    its own schedule or none: a plan by another rule would not be what its name says.

    Parameters
    ----------
    spared_s
        Seconds to leave once there is a schedule.

    Raises
    ------
    InfeasibleError
        If no placement exists.
    InputError
        If the method needs a package that is not installed.
    """

    made, own = 0, _rule(method, problem)

    def run(seen: Instance, priority: Priority, fixed: Fixed) -> Schedule | None:
        nonlocal made
        found = own(seen, priority, fixed)
        made += found is not None
        return found

    def rule(surrogate: Instance) -> Schedule | None:
        found = construct(_seen_by(method, problem, surrogate), run)
        return found or construct_on_placement(problem, surrogate, run, _PLACEMENT_SHARE * budget.left_s)

    first = budget.for_first

    def is_over() -> bool:
        return budget.left_s <= spared_s if made else not first.left_s

    admitted = within(is_over, partial(best_admitted, problem, instance, rule))
    return None if admitted is None else admitted[0]


def _rule(method: str, problem: Problem) -> Heuristic:
    return DEVICE_MAPS[method](problem) if method in DEVICE_MAPS else RULES[method]


def _seen_by(method: str, problem: Problem, instance: Instance) -> Instance:
    """The instance that a method works on: contiguous runs take modules whole, where ops tell theirs."""
    has_modules = any(op.module is not None for op in problem.graph.ops)
    return by_module(problem, instance) if method == "contiguous" and has_modules else instance
