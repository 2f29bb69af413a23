"""All methods on one problem: what each reaches, against the best single device and the best lower bound."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from dlplacer.check import violations
from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError, InternalError, NoPlanError
from dlplacer.core.expect import expect, printable
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.files.plan_file import plan_to_dict
from dlplacer.machines.costs.issue import with_issue
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.assemble import assemble, contradicts
from dlplacer.planning.constrain import constrained
from dlplacer.planning.place import place, single_device_s
from dlplacer.planning.saved_problem import saving_problem
from dlplacer.planning.tick_length import with_fine_ticks
from dlplacer.problem.dispatch import dispatch_of
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.feasibility.graph_size import require_size
from dlplacer.solvers.feasibility.simple_reasons import require_feasible
from dlplacer.solvers.heuristics.min_cut import available
from dlplacer.solvers.heuristics.single_device import best_single
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.outcome import Budget, Outcome, ProblemSchedule, Progress
from dlplacer.solvers.methods import HEURISTICS, METHODS, compared, run_rule

if TYPE_CHECKING:
    import pandas

_BOUND_SHARE = 0.05
"""Share of the time limit for the bound that all heuristics are judged by: 0.3 s suffice for 2,000 ops."""

_SAME = 1e-9
"""Relative difference of two times that float arithmetic may make."""


@dataclass(frozen=True)
class MethodResult:
    """What one method reached.

    Attributes
    ----------
    status
        ``optimal``: by the best lower bound of all methods no plan is better; ``feasible``; ``infeasible``: the graph
        fits on no single device (method ``single``); ``no plan``: none was found, for want of time or of memory;
        ``not installed``: it needs an optional package.
    makespan_s
        Step time of its plan, or None.
    solve_s
        Seconds that the method took; a heuristic's do not count what all share: tables, lower bound and check.
    plan
        Its plan, which has passed `dlplacer.check`, or None.
    """

    method: str
    status: str
    makespan_s: float | None
    solve_s: float
    plan: Plan | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The results of several methods on one problem.

    Attributes
    ----------
    rows
        The best makespan first, methods without a plan last.
    lower_bound_s
        A time that no plan can beat: the best bound that any method proved.
    single_device_s
        Makespan of the whole graph on the best single device; None where it fits on none.
    name
        Names of graph and topology.
    """

    rows: tuple[MethodResult, ...]
    lower_bound_s: float
    single_device_s: float | None
    name: str = ""

    def __repr__(self) -> str:
        lines = [f"<Comparison {printable(self.name)}: lower bound {format_seconds(self.lower_bound_s)}"]
        for row in self.rows:
            speedup, gap = self.speedup(row), self.gap(row)
            cells = (
                row.status if row.makespan_s is None else format_seconds(row.makespan_s),
                "" if speedup is None else f"{speedup:.3f}x",
                "" if gap is None else f"gap {100 * gap:.2f} %",
            )
            lines.append(f"  {row.method:<10} {cells[0]:>10} {cells[1]:>8} {cells[2]:>12}")
        return "\n".join(lines) + ">"

    def speedup(self, row: MethodResult) -> float | None:
        """Best single device ÷ makespan; None where one of them is missing, or the plan takes no time."""
        expect("comparison", "row", row, MethodResult, "one of its rows")
        if self.single_device_s is None or not row.makespan_s:
            return None
        return self.single_device_s / row.makespan_s

    def gap(self, row: MethodResult) -> float | None:
        """(makespan − lower bound) ÷ makespan; None without a plan."""
        expect("comparison", "row", row, MethodResult, "one of its rows")
        if row.makespan_s is None:
            return None
        return max(0.0, 1 - self.lower_bound_s / row.makespan_s) if row.makespan_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer compare --json`` prints: times in seconds, speedups and gaps as ratios."""
        rows = [
            {
                "method": row.method,
                "makespan_s": row.makespan_s,
                "lower_bound_s": self.lower_bound_s,
                "solve_s": row.solve_s,
                "status": row.status,
                "speedup": self.speedup(row),
                "gap": self.gap(row),
            }
            for row in self.rows
        ]
        return {"methods": rows}

    def to_frame(self) -> "pandas.DataFrame":
        """A row per method, the best first: times in seconds, speedup and gap as ratios, as in `to_dict`."""
        import pandas

        return pandas.DataFrame(self.to_dict()["methods"])


@saving_problem
def compare(
    graph: OpGraph,
    topology: Topology,
    options: Options | None = None,
    *,
    methods: Iterable[str] | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: Event | None = None,
    pins: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    colocate: Iterable[str | Iterable[str]] = (),
    issue: str = "none",
) -> Comparison:
    """What every method makes of a graph on a machine.

    Parameters
    ----------
    methods
        Keys of `dlplacer.solvers.methods.METHODS`; None means all that make sense of the problem.
    time_limit_s
        Seconds for each method. The heuristics need far less; ``ilp`` ends early once its plan is proved optimal.
    on_progress
        Called with the best plan and the best bound of all methods.
    options, seed, workers, stop, pins, colocate, issue
        As for `dlplacer.planning.place.place`.

    Raises
    ------
    InputError
        If there is no such method, an op has no time on an allowed device, or an argument is out of range.
    InfeasibleError
        If no plan can exist; names the constraint to blame.
    """
    chosen = _known(methods)
    if not 0 < time_limit_s < math.inf:
        raise InputError(f"time limit is {time_limit_s:g} s; it must be positive and finite")
    topology = with_issue(topology, issue)
    graph = constrained(graph, topology, pins, colocate)
    require_size(graph)
    problem = build_problem(with_times(graph, topology), topology, options or Options())
    require_feasible(problem)
    problem = with_fine_ticks(problem)
    chosen = compared(problem) if methods is None else chosen
    instance = build_instance(problem)
    bound = lower_bounds(instance, _BOUND_SHARE * time_limit_s).makespan
    board = _Board(float(bound * problem.tick_s), on_progress)
    delays = dispatch_of(topology).delays
    for method in (name for name in chosen if name in HEURISTICS and not delays):
        budget = Budget(time.monotonic() + time_limit_s, stop=stop or Event())
        board.add(_heuristic(problem, instance, method, budget, bound))
    solve = partial(
        place,
        graph,
        topology,
        options,
        time_limit_s=time_limit_s,
        seed=seed,
        workers=workers,
        on_progress=board.tell,
        stop=stop,
    )
    single = _solved("single", solve) if delays else _single(problem, bound)
    single = single if single.plan is not None else replace(single, status="infeasible")
    for method in (name for name in chosen if delays or name not in HEURISTICS):
        if method == "min-cut" and not available():
            board.add(MethodResult(method, "not installed", None, 0.0))
        else:
            board.add(single if method == "single" else _solved(method, solve))
    name = f"{graph.name or 'graph'} on {topology.name or f'{len(topology.devices)} devices'}"
    single_s = single_device_s(problem) if graph.constraints else single.makespan_s
    return Comparison(board.ranked(chosen), board.bound_s, single_s, name)


class _Board:
    """The results so far, with the best plan and the best bound of all."""

    def __init__(self, lower_bound_s: float, on_progress: Callable[[Progress], None]) -> None:
        self.began = time.monotonic()
        self.rows: list[MethodResult] = []
        self.makespan_s = math.inf
        self.lower_bound_s = lower_bound_s
        self.on_progress = on_progress

    def add(self, row: MethodResult) -> None:
        """Count a result; an InternalError if a bound of one method is above the plan of another."""
        self.rows.append(row)
        if row.plan is None:
            return
        makespan_s = min(self.makespan_s, row.plan.makespan_s)
        bound_s = max(self.lower_bound_s, row.plan.lower_bound_s)
        if contradicts(bound_s, makespan_s):
            raise InternalError(
                f"with method {row.method!r} the best lower bound is {bound_s:.9g} s, above the {makespan_s:.9g} s of "
                "the best plan; please report it",
                lower_bound_s=bound_s,
                plans=[plan_to_dict(each.plan) for each in self.rows if each.plan is not None],
            )
        self.tell(Progress(makespan_s, bound_s, 0.0))

    @property
    def bound_s(self) -> float:
        """The best bound, no higher than the best plan in the last digit of a sum; `add` refuses one that is higher."""
        return min(self.lower_bound_s, self.makespan_s)

    def tell(self, progress: Progress) -> None:
        """Report what a method has reached together with what is known already."""
        if progress.makespan_s is not None:
            self.makespan_s = min(self.makespan_s, progress.makespan_s)
        self.lower_bound_s = max(self.lower_bound_s, progress.lower_bound_s)
        best_s = None if math.isinf(self.makespan_s) else self.makespan_s
        self.on_progress(Progress(best_s, self.bound_s, time.monotonic() - self.began))

    def ranked(self, chosen: Sequence[str]) -> tuple[MethodResult, ...]:
        """The results, best first, judged by the best bound."""

        def rank(row: MethodResult) -> tuple[float, int]:
            return math.inf if row.makespan_s is None else row.makespan_s, chosen.index(row.method)

        return tuple(sorted(map(self._judged, self.rows), key=rank))

    def _judged(self, row: MethodResult) -> MethodResult:
        if row.plan is None:
            return row
        excess_s = row.plan.makespan_s - row.plan.rounding_s - self.lower_bound_s
        return replace(row, status="optimal" if excess_s <= _SAME * row.plan.makespan_s else "feasible")


def _known(methods: Iterable[str] | None) -> tuple[str, ...]:
    chosen = tuple(METHODS if methods is None else dict.fromkeys(methods))
    for method in chosen:
        if method not in METHODS:
            raise InputError(f"there is no method {method!r}; use some of {', '.join(METHODS)}")
    if not chosen:
        raise InputError(f"no method is chosen; use some of {', '.join(METHODS)}")
    return chosen


def _heuristic(problem: Problem, instance: Instance, method: str, budget: Budget, bound: int) -> MethodResult:
    if method == "min-cut" and not available():
        return MethodResult(method, "not installed", None, 0.0)
    began = time.monotonic()
    found = run_rule(problem, instance, method, budget)
    solve_s = time.monotonic() - began
    schedule = None if found is None else ProblemSchedule.of(problem, instance, found)
    return _checked(problem, method, schedule, solve_s, bound)


def _single(problem: Problem, bound: int) -> MethodResult:
    began = time.monotonic()
    schedule = best_single(problem)
    return _checked(problem, "single", schedule, time.monotonic() - began, bound)


def _solved(method: str, solve: Callable[..., Result]) -> MethodResult:
    began = time.monotonic()
    try:
        plan = solve(method=method).plan
    except NoPlanError:
        return MethodResult(method, "no plan", None, time.monotonic() - began)
    return MethodResult(method, plan.status, plan.makespan_s, plan.solve_s, plan)


def _checked(
    problem: Problem, method: str, schedule: ProblemSchedule | None, solve_s: float, bound: int
) -> MethodResult:
    if schedule is None:
        return MethodResult(method, "no plan", None, solve_s)
    plan = assemble(problem, Outcome(schedule, bound), schedule, method, solve_s, {})
    broken = violations(plan)
    if broken:
        raise InternalError(f"the plan of method {method!r} breaks the rules: " + "; ".join(map(str, broken[:3])))
    return MethodResult(method, plan.status, plan.makespan_s, solve_s, plan)
