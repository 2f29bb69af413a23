"""Turn a schedule in ticks into a plan in seconds, with its provenance.

Ticks decide only placement and order. Start times are recomputed in seconds, with every op as early as placement and
order allow, so that a plan is exact even if ticks are rounded.
"""

import hashlib
import json
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import OBJECTIVES
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
from dlplacer.files.formats import graph_to_dict, plan_to_dict, topology_to_dict
from dlplacer.files.text import write_json
from dlplacer.problem.dispatch import dispatch_of, least_step_s
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.loads import period_s
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import realise, replay
from dlplacer.solvers.heuristics.single_device import singles
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule
from dlplacer.solvers.methods import schedules_by

_SAME = 1e-9
"""Largest relative difference between two float sums of the same times."""

NEGLIGIBLE = 1e-4
"""Largest share of the makespan that rounding may hide; above it, a proof in ticks does not hold in seconds."""


def assemble(
    problem: Problem,
    outcome: Outcome,
    schedule: ProblemSchedule,
    method: str,
    solve_s: float,
    provenance: Mapping[str, Any],
) -> Plan:
    """The plan of a schedule, with its transfers, memory and gap (Pal et al. 2019, eq. 7–13)."""
    ops, transfers = in_seconds(problem, schedule)
    return plan_of(problem, ops, transfers, outcome, method, solve_s, provenance)


def in_seconds(problem: Problem, schedule: ProblemSchedule) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers of a schedule, with their times in seconds."""
    if schedule.transfers is None:
        return replay(problem, schedule.device, schedule.order)
    return realise(problem, schedule.device, schedule.start, schedule.transfers)


def plan_of(
    problem: Problem,
    ops: Sequence[ScheduledOp],
    transfers: Sequence[Transfer],
    outcome: Outcome,
    method: str,
    solve_s: float,
    provenance: Mapping[str, Any],
) -> Plan:
    """The plan of timed ops and transfers; `outcome` gives the bound and, if it has a schedule, the value in ticks.

    If ops wait for the processes that issue them, times are not whole ticks; the gap is then computed in seconds.

    Raises InternalError if the bound is above the objective's value, or the plan is longer than rounding explains.
    """
    dispatch, objective = dispatch_of(problem.topology), OBJECTIVES[problem.options.objective]
    bound_s = float(outcome.lower_bound * problem.tick_s)
    if dispatch.delays:
        bound_s = max(bound_s, least_step_s(problem, dispatch))
    measure_s, measure = _MEASURES[objective.label]
    value_s = measure_s(problem, ops, transfers)
    value = None if outcome.schedule is None else measure(problem, outcome.schedule)
    # Ticks cap times at twice `reached_s`; a plan longer than `reached_s` may contain a capped time.
    ticks_s = value_s if value is None else float(value * problem.tick_s)
    if dispatch.delays or (problem.reached_s is not None and ticks_s > problem.reached_s):
        lower_bound_s = value_s if value_s - bound_s <= _SAME * value_s else bound_s
        gap, rounding_s = (value_s - lower_bound_s) / value_s if value_s else 0.0, 0.0
    else:
        lower_bound_s, gap, rounding_s = _figures_in_ticks(problem, value_s, value, outcome.lower_bound)
    figures: dict[str, Any] = {"makespan_s": _makespan_s(problem, ops, transfers), objective.figure: value_s}
    plan = Plan(
        graph=problem.graph,
        topology=problem.topology,
        options=problem.options,
        status="feasible" if gap else "optimal",
        **figures,
        lower_bound_s=lower_bound_s,
        gap=gap,
        rounding_s=rounding_s,
        method=method,
        solve_s=solve_s,
        ops=tuple(ops),
        transfers=tuple(transfers),
        memory=memory_use(problem, ops, transfers),
        provenance=provenance,
    )
    if contradicts(bound_s, plan.value_s):
        raise InternalError(
            f"the lower bound of {bound_s:.9g} s is above the {objective.label} of {plan.value_s:.9g} s of a "
            "plan; please report it",
            lower_bound_s=bound_s,
            plan=plan_to_dict(plan),
        )
    return plan


def _makespan_s(problem: Problem, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> float:
    return max(entry.end_s for entry in ops)


_MEASURES: dict[str, tuple[Callable[..., float], Callable[[Problem, ProblemSchedule], int | None]]] = {
    "makespan": (_makespan_s, lambda problem, schedule: schedule.makespan),
    "period": (period_s, lambda problem, schedule: schedule.period),
}
"""Label of an objective → functions for its value: of ops and transfers in seconds, and of a schedule in ticks."""


def with_bound(plan: Plan, bound_s: float) -> Plan:
    """The plan with another lower bound, and the gap and status that follow from it."""
    gap = (plan.value_s - bound_s) / plan.value_s if plan.value_s else 0.0
    gap = 0.0 if gap <= _SAME else gap
    return replace(plan, lower_bound_s=bound_s, gap=gap, status="feasible" if gap else "optimal")


def contradicts(bound_s: float, value_s: float) -> bool:
    """True if a plan beats a lower bound by more than the error of float sums."""
    return bound_s > (1 + _SAME) * value_s


def _figures_in_ticks(problem: Problem, value_s: float, known: int | None, bound: int) -> tuple[float, float, float]:
    """Lower bound (s), gap and rounding error (s) of an objective's value; `known` is the value in ticks, if any."""
    length = value_s / float(problem.tick_s)
    replayed = round(length) if problem.exact or known is not None else int(length)
    value = replayed if known is None else min(known, replayed)
    # A sum of floats may be just below its tick; `plan_of` raises an error for larger differences.
    value = max(value, bound)
    gap = (value - bound) / value if value else 0.0
    lower_bound_s = min(float(bound * problem.tick_s), value_s)
    rounding_s = _rounding_s(problem, value_s, value)
    if rounding_s > NEGLIGIBLE * value_s:
        gap = (value_s - lower_bound_s) / value_s
    return lower_bound_s, gap, rounding_s


def _rounding_s(problem: Problem, value_s: float, value: int) -> float:
    """Seconds that rounding hides: less than two ticks for each op and arc, and none if ticks are exact."""
    tick_s = float(problem.tick_s)
    hidden_s = max(0.0, value_s - value * tick_s)
    steps = problem.op_count + len(problem.arcs)
    allowed = 0.5 if problem.exact else 2 * steps
    if hidden_s > allowed * tick_s:
        raise InternalError(
            f"a schedule of {value} ticks takes {value_s / tick_s:.6g} ticks when it is replayed; please report "
            "this graph and topology"
        )
    return 0.0 if problem.exact else hidden_s


_WIDE = 2**10
"""Largest ratio of horizon to least work that keeps its ticks; above it, a tick may exceed a millionth of a step."""

_NEAR, _FARTHER, _ROUNDS = 2**6, 2**8, 4
"""The first limit ÷ the least work, the factor from one limit to the next, and the number of limits."""


def with_fine_ticks(problem: Problem) -> Problem:
    """The problem, in shorter ticks if its horizon is far above the makespan of its plans.

    The shorter ticks suit plans up to the makespan of a first heuristic plan. If no heuristic finds a plan, because
    memory is short, the ticks suit plans up to 64 times the time of all ops on their fastest devices.
    """
    kinds = problem.topology.device_types
    # The time of all ops, each on its fastest device type.
    work_s = sum(min(t for kind in kinds if (t := op.time_on(kind)) is not None) for op in problem.graph.ops)
    if float(problem.horizon * problem.tick_s) <= _WIDE * work_s or not work_s:
        return problem
    limit_s, shortest_s = _NEAR * work_s, 0.0
    for _ in range(_ROUNDS):
        found_s = _first_plan_s(_limited(problem, limit_s))
        if found_s is None:
            return _limited(problem, _NEAR * work_s)
        shortest_s = found_s
        if shortest_s <= limit_s:
            break
        limit_s *= _FARTHER
    return _limited(problem, shortest_s)


def rescaled(problem: Problem, plan: Plan) -> Problem | None:
    """The problem in ticks that suit schedules up to the length of `plan`; None if its ticks suit them already."""
    if problem.reached_s is not None and plan.makespan_s > problem.reached_s:
        return _limited(problem, plan.makespan_s)
    if plan.rounding_s <= NEGLIGIBLE * plan.makespan_s:
        return None
    finer = _limited(problem, plan.makespan_s)
    return finer if 2 * finer.tick_s < problem.tick_s else None


def _limited(problem: Problem, limit_s: float) -> Problem:
    return build_problem(problem.graph, problem.topology, problem.options, limit_s)


def _first_plan_s(problem: Problem) -> float | None:
    """Approximate makespan on the best single device, or of the first list schedule if no device holds all ops."""
    homes = {problem.topology.devices[single.device[0]].type for single in singles(problem)}
    if homes:
        return min(sum(op.time_on(kind) or 0.0 for op in problem.graph.ops) for kind in homes)
    found = next(schedules_by("list", problem), None)
    return None if found is None else _makespan_s(problem, *in_seconds(problem, found))


def provenance_of(problem: Problem, **choices: float) -> dict[str, Any]:
    """A plan's provenance: versions, `choices` such as the seed, and hashes of graph and topology."""
    from importlib.metadata import version

    return {
        "dlplacer": __version__,
        "ortools": version("ortools"),
        "python": platform.python_version(),
        **choices,
        **digests(problem),
    }


def digests(problem: Problem) -> dict[str, str]:
    """Hashes of graph and topology, computed once for a problem."""
    if digests not in problem.derived:
        problem.derived[digests] = {
            "graph_sha256": _digest(problem.graph),
            "topology_sha256": _digest(problem.topology),
        }
    return problem.derived[digests]  # type: ignore[no-any-return]


def _digest(value: OpGraph | Topology) -> str:
    """The hash of all fields of a graph or topology."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_held_by).encode()).hexdigest()


def _held_by(value: Any) -> Any:
    """The fields of a dataclass, or the entries of a mapping, for JSON."""
    return dict(value) if isinstance(value, Mapping) else _fields_of(value.__class__)(value)


@cache
def _fields_of(kind: type) -> Callable[[Any], Any]:
    return attrgetter(*(each.name for each in fields(kind)))


@contextmanager
def problem_kept(problem: Problem) -> Iterator[None]:
    """If an `InternalError` is raised inside, save the problem and the evidence in a file that the message names."""
    try:
        yield
    except InternalError as error:
        value = {
            "format": "dlplacer.contradiction/1",
            "dlplacer": __version__,
            "message": str(error),
            "evidence": error.evidence,
            "options": problem.options.to_dict(),
            "topology": topology_to_dict(problem.topology),
            "graph": graph_to_dict(problem.graph),
        }
        for folder in (Path.cwd(), Path(tempfile.gettempdir())):
            path = folder / f"dlplacer-contradiction-{digests(problem)['graph_sha256'][:8]}.json"
            with suppress(OSError, InputError):
                write_json(path, value)
                raise InternalError(f"{error}; the problem is saved in {path}; attach it", **error.evidence) from error
        raise
