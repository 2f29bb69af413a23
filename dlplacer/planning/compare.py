"""All methods on one problem: their results, with the best single device and the best lower bound."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError, InternalError, NoPlanError
from dlplacer.core.expect import printable
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.table import Table
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.files.formats import plan_to_dict
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.roofline import with_issue
from dlplacer.planning.assemble import contradicts
from dlplacer.planning.one_device import single_device_s
from dlplacer.planning.place import prepared, solved
from dlplacer.solvers.heuristics.min_cut import available
from dlplacer.solvers.instance.schedule import Budget, Progress
from dlplacer.solvers.methods import DEFAULT_METHOD, METHODS, compared

_SAME = 1e-9
"""Largest relative difference between two times that float arithmetic can cause."""


@dataclass(frozen=True)
class MethodResult:
    """The result of one method.

    `status`: ``optimal``: the best lower bound of all methods proves that no plan is better; ``feasible``: a plan
    without this proof; ``infeasible``: the graph fits on no single device (method ``single``); ``no plan``: no plan was
    found, for lack of time or memory; ``not installed``: the method needs an optional package.
    """

    method: str
    status: str
    makespan_s: float | None
    solve_s: float
    plan: Plan | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The results of several methods on one problem.

    `rows`: Results by makespan, methods without a plan last. `lower_bound_s`: The best bound that any method proved; no
    plan is shorter. `single_device_s`: Makespan of the graph on the best single device; None if the graph fits on none.
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
        """`single_device_s` ÷ makespan; None if either is missing or the makespan is 0."""
        if self.single_device_s is None or not row.makespan_s:
            return None
        return self.single_device_s / row.makespan_s

    def gap(self, row: MethodResult) -> float | None:
        """(makespan − lower bound) ÷ makespan; None without a plan."""
        if row.makespan_s is None:
            return None
        return max(0.0, 1 - self.lower_bound_s / row.makespan_s) if row.makespan_s else 0.0

    @property
    def table(self) -> Table:
        """A row per method, the best first."""
        heads = ("method", "status", "makespan_s|step time|seconds", "lower_bound_s|lower bound|seconds")
        rows = (
            (row.method, row.status, row.makespan_s, self.lower_bound_s, self.speedup(row), self.gap(row), row.solve_s)
            for row in self.rows
        )
        return Table.described(rows, *heads, "speedup||times", "gap||percent", "solve_s|solved in|seconds")

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer compare --json`` prints: times in seconds, speedups and gaps as ratios."""
        return {"methods": self.table.records}


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
    """The plans and times of every method for a graph on a machine, each within `time_limit_s` seconds.

    `options`, `seed`, `workers`, `stop`, `pins`, `colocate`, `issue`: See `dlplacer.planning.place.place`.

    Raises InfeasibleError, which names the constraint to blame, if no plan can exist.
    """
    chosen = tuple(METHODS if methods is None else dict.fromkeys(methods))
    if unknown := [method for method in chosen or ("",) if method not in METHODS]:
        raise InputError(f"there is no method {unknown[0]!r}; use some of {', '.join(METHODS)}")
    (options or Options()).require_makespan("compare")
    if not 0 < time_limit_s < math.inf:
        raise InputError(f"time limit is {time_limit_s:g} s; it must be positive and finite")
    problem = prepared(graph, with_issue(topology, issue), options or Options(), pins, colocate)
    chosen = compared(problem) if methods is None else chosen
    stop, threads, first = stop or Event(), workers or len(usable_cores()), time.monotonic()
    best_s, bound_s = math.inf, 0.0

    def tell(progress: Progress) -> None:
        """Report a method's progress together with the best plan and bound so far."""
        nonlocal best_s, bound_s
        best_s = min(best_s, math.inf if progress.makespan_s is None else progress.makespan_s)
        bound_s = max(bound_s, progress.lower_bound_s)
        found_s = None if math.isinf(best_s) else best_s
        on_progress(Progress(found_s, min(bound_s, best_s), time.monotonic() - first))

    rows: list[MethodResult] = []
    # The default method comes last, so that its progress includes the results of the others.
    for method in sorted(chosen, key=lambda name: name == DEFAULT_METHOD):
        began = time.monotonic()
        if method == "min-cut" and not available():
            rows.append(MethodResult(method, "not installed", None, 0.0))
            continue
        try:
            plan = solved(problem, method, Budget(began, 0.0, seed, threads, stop), time_limit_s, tell).plan
        except NoPlanError:
            status = "infeasible" if method == "single" else "no plan"
            rows.append(MethodResult(method, status, None, time.monotonic() - began))
            continue
        rows.append(MethodResult(method, plan.status, plan.makespan_s, plan.solve_s, plan))
        tell(Progress(plan.makespan_s, plan.lower_bound_s, 0.0))
        _require_consistent(rows, bound_s, best_s)
    # Because of float sums, the best bound may exceed the best plan in the last digit.
    rows = [_judged(row, bound_s) for row in rows]
    rows.sort(key=lambda row: (math.inf if row.makespan_s is None else row.makespan_s, chosen.index(row.method)))
    name = f"{graph.name or 'graph'} on {topology.name or f'{len(topology.devices)} devices'}"
    return Comparison(tuple(rows), min(bound_s, best_s), single_device_s(problem), name)


def _require_consistent(rows: Sequence[MethodResult], bound_s: float, best_s: float) -> None:
    """Raise InternalError if the bound of one method is above the plan of another."""
    if contradicts(bound_s, best_s):
        raise InternalError(
            f"with method {rows[-1].method!r} the best lower bound is {bound_s:.9g} s, above the {best_s:.9g} s of "
            "the best plan; please report it",
            lower_bound_s=bound_s,
            plans=[plan_to_dict(each.plan) for each in rows if each.plan is not None],
        )


def _judged(row: MethodResult, bound_s: float) -> MethodResult:
    """The row with its status according to the best bound of all methods."""
    if row.plan is None:
        return row
    excess_s = row.plan.makespan_s - row.plan.rounding_s - bound_s
    return replace(row, status="optimal" if excess_s <= _SAME * row.plan.makespan_s else "feasible")
