"""The methods by name. Every outcome carries a lower bound, so every method reports a gap."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from dlplacer.core.errors import InputError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds import critical_path, lower_bounds, whole_area
from dlplacer.solvers.feasibility import EXACT_UP_TO, explain_infeasible
from dlplacer.solvers.heuristics.contiguous import contiguous
from dlplacer.solvers.heuristics.device_map import balanced, m_topo, sequential
from dlplacer.solvers.heuristics.list_rules import Heuristic, construct, heft, list_schedule
from dlplacer.solvers.heuristics.min_cut import min_cut
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, reader, search
from dlplacer.solvers.ilp.dlplacer_model import build_dlplacer_model
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, attempts
from dlplacer.solvers.instance.schedule import Begin, Budget, Incumbent, Outcome, ProblemSchedule, Schedule
from dlplacer.solvers.instance.time_limit import within
from dlplacer.solvers.load_objectives import solve_throughput
from dlplacer.solvers.phases import PHASES, solve_ilp
from dlplacer.solvers.starts import Start, StartSearch

_BOUND_SHARE = 0.2
"""Share of the time limit for the bound beside a heuristic's plan."""


def solve_from(begin: Begin, problem: Problem, budget: Budget) -> Outcome:
    """The outcome of the default method, started with the schedules and the bound that `begin` finds."""
    starts = [start_of(method) for method in HEURISTICS if method not in budget.without]
    return solve_ilp(problem, budget, starts, begin)


def start_of(method: str) -> Start:
    """A heuristic as a start of the default method; it finds nothing if the heuristic's package is not installed."""

    def find(problem: Problem, instance: Instance) -> Schedule | None:
        try:
            return _found(method, problem, instance)
        except InputError:
            return None

    return find


def _found(method: str, problem: Problem, instance: Instance) -> Schedule | None:
    return construct(instance, HEURISTICS[method](problem))


def _single(problem: Problem, budget: Budget) -> Outcome:
    bound = _bound(build_instance(problem), budget, _BOUND_SHARE * budget.left_s)
    return Outcome(best_single(problem), bound)


def _dlplacer(problem: Problem, budget: Budget) -> Outcome:
    """The best schedule that CP-SAT finds for the ILP of Pal et al. 2019, timed under the problem's rules."""
    built = within(lambda: not budget.left_s, partial(build_dlplacer_model, problem))
    if built is None:
        return Outcome(None, 0)
    instance = build_instance(problem)
    incumbent = Incumbent(budget, admission(problem, instance))
    if search(built[0], reader(built[1], instance), incumbent, budget.left_s) is SearchEnd.INFEASIBLE:
        raise explain_infeasible(problem)
    best = incumbent.best
    return Outcome(None if best is None else ProblemSchedule.of(problem, instance, best), incumbent.bound)


def schedules_by(method: str, problem: Problem) -> Iterator[ProblemSchedule | None]:
    """A schedule, or None, for each attempt of a heuristic until one fits; InputError if its package is missing."""
    instance = build_instance(problem)
    for found, _, admitted in attempts(problem, instance, partial(_found, method, problem)):
        yield ProblemSchedule.of(problem, instance, found) if admitted and found is not None else None


def _heuristic(problem: Problem, budget: Budget, method: str) -> Outcome:
    """The outcome with the heuristic's own schedule or none: no other rule's plan would match the method's name."""
    instance, bound_s = build_instance(problem), _BOUND_SHARE * budget.left_s
    incumbent = Incumbent(replace(budget.unreported, deadline=budget.deadline - bound_s), admission(problem, instance))
    StartSearch(problem, instance, incumbent, [partial(_found, method)]).run()
    found, bound = incumbent.best, _bound(instance, budget, bound_s)
    budget.report(None if found is None else found.makespan, bound)
    return Outcome(None if found is None else ProblemSchedule.of(problem, instance, found), bound)


def _bound(instance: Instance, budget: Budget, seconds: float) -> int:
    """The best of all combinatorial bounds, or of the two simple ones if a stop is requested."""
    bounds = within(budget.stop.is_set, partial(lower_bounds, instance, min(seconds, budget.left_s)))
    return max(critical_path(instance), whole_area(instance)) if bounds is None else bounds.makespan


HEURISTICS: dict[str, Callable[[Problem], Heuristic]] = {
    "list": lambda problem: list_schedule,
    "heft": lambda problem: heft,
    "min-cut": lambda problem: min_cut,
    "contiguous": lambda problem: contiguous,
    "balanced": balanced,
    "sequential": sequential,
    "m-topo": lambda problem: m_topo,
}
"""Heuristic → its rule for a problem; the default method runs heuristics in this order, the most profitable first."""

DEFAULT_METHOD = "ilp"

METHODS: dict[str, Callable[[Problem, Budget], Outcome]] = {
    DEFAULT_METHOD: partial(solve_from, lambda instance, incumbent: None),
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


def left_out(names: Iterable[str]) -> frozenset[str]:
    """The phases and heuristics to leave out; raises InputError for an unknown name or a needed phase."""
    found = frozenset(names)
    known = [*(phase.name for phase in PHASES if not phase.is_needed), *HEURISTICS]
    for name in sorted(found.difference(known)):
        raise InputError(f"there is nothing {name!r} to leave out; use some of {', '.join(known)}")
    return found


def compared(problem: Problem) -> tuple[str, ...]:
    """The methods to compare on a problem; ``dlplacer`` is among them only for few ops with delays of eq. 11."""
    as_written = problem.op_count <= EXACT_UP_TO and problem.options.delay == "store-and-forward"
    return tuple(method for method in METHODS if as_written or method != "dlplacer")


SUMMARIES = {
    DEFAULT_METHOD: "all heuristics, then bounds, sections, annealing and the integer program (default)",
    "list": "list scheduling by upward rank; no device idles while an op could run on it",
    "heft": "heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002)",
    "min-cut": "balanced partition of least cut (METIS)",
    "sequential": "modules fill device after device, as a sequential Hugging Face device_map",
    "m-topo": "devices filled one after another in the program's order (Jeon et al. 2020, Baechi)",
    "balanced": "equal shares of the weights by modules in order, as a balanced Hugging Face device_map",
    "contiguous": "one run of consecutive layers for each device (Tarnawski et al. 2020)",
    "single": "all on the best single device",
    "dlplacer": "the paper's integer program as it is written, eq. 7 to 13, for small graphs (Pal et al. 2019)",
}
"""Method → what it does, in a line."""
