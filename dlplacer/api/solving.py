"""Plans and the reasons for their step time: `place`, `compare`, `pipeline`, `explain` and more."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from os import PathLike
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from dlplacer.api.jobs import is_entry, job_of
from dlplacer.api.parameters import CaptureOptions, JobOptions, StepOptions, checked
from dlplacer.api.subjects import (
    GraphLike,
    OptionsLike,
    PlanLike,
    TopologyLike,
    graph_of,
    machine_of,
    note,
    options_of,
    plan_of,
    silent,
    whole_plan_of,
)
from dlplacer.check import Violation
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.constrain import Pins, Together, matching, pins_of, together_of
from dlplacer.planning.result import Result

if TYPE_CHECKING:
    from dlplacer.frontend.torch.job import Job
    from dlplacer.measure.splitting import SplitChoice, SplitResult
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
    from dlplacer.report.explanation import Explanation
    from dlplacer.solvers.instance.schedule import Progress

Files: TypeAlias = Sequence[str | PathLike[str]]
"""Paths of calibration files, which hold op times measured on a type of device."""


@checked
def place(
    graph: GraphLike,
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    method: str = "ilp",
    time_limit_s: float = 60.0,
    work_s: float | None = None,
    without: str | Iterable[str] = (),
    export: str | PathLike[str] | None = None,
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: "Callable[[Progress], None]" = silent,
    stop: Event | None = None,
    pins: Pins = (),
    colocate: Together = (),
    warm_start: PlanLike | None = None,
    issue: str = "none",
    calibration: Files = (),
    **step: Unpack[StepOptions],
) -> Result:
    """The best plan found for a graph on a machine, with a lower bound and a gap.

    Raises InputError if an argument is invalid, or an op has no time on an allowed device; InfeasibleError if no plan
    can exist, naming the constraint to blame; NoPlanError if no plan was found in time; KeyboardInterrupt on Ctrl-C
    before the first plan, or on a second Ctrl-C.

    Examples
    --------
    >>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", "paper", method="heft")
    >>> result.status, result.plan.options.contention, result.speedup > 1.2
    ('feasible', 'none', True)
    """
    from dlplacer.planning.place import place as place_graph

    began = time.monotonic()
    made, machine = problem_of(graph, topology, calibration, step)
    # A capture does not count, because the user's code may take longer than the limit.
    if isinstance(graph, (str, PathLike)) and not is_entry(str(graph)):
        time_limit_s = max(time_limit_s - (time.monotonic() - began), time_limit_s / 2)
    assumed, held, together = options_of(options), pins_of(pins, machine), together_of(colocate)
    if export is not None:
        from dlplacer.planning.place import prepared
        from dlplacer.solvers.ilp.dlplacer_model import export_model

        export_model(prepared(made, machine, assumed, held, together), Path(export))
    limits: dict[str, Any] = {"time_limit_s": time_limit_s, "work_s": work_s, "gap": gap, "stop": stop}
    search: dict[str, Any] = {"seed": seed, "workers": workers, "issue": issue, "without": without}
    if warm_start is not None:
        search["warm_start"] = plan_of(warm_start, "warm_start", keeps_rules=True)
    search |= {"pins": held, "colocate": together, "on_progress": on_progress}
    return place_graph(made, machine, assumed, method=method, **limits, **search)


@checked
def place_with_splits(
    job: "Job | str",
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    graph: GraphLike | None = None,
    parts: int | None = None,
    whole_backward: bool = False,
    time_limit_s: float = 60.0,
    on_progress: "Callable[[SplitChoice], None]" = silent,
    method: str = "ilp",
    gap: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    stop: Event | None = None,
    **job_options: Unpack[JobOptions],
) -> "SplitResult":
    """The best plans found for a job without and with splits of its ops.

    Examples
    --------
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    >>> job = dp.Job(module, args=(torch.randn(4096, 256),), mode="infer")
    >>> found = dp.place_with_splits(job, "cpu-2core", time_limit_s=4)
    >>> found.gain >= 1
    True
    """
    from dlplacer.frontend.torch.capture import default_rewrites
    from dlplacer.measure.splitting import place_with_splits as place_job

    step, whole = job_of(job, job_options, fake=True), None if graph is None else graph_of(graph)
    solving: dict[str, Any] = {"method": method, "gap": gap, "seed": seed, "workers": workers, "stop": stop}
    solving |= {
        "parts": parts,
        "rewrites": default_rewrites(whole_backward),
        "time_limit_s": time_limit_s,
        "on_progress": on_progress,
    }
    return place_job(step, machine_of(topology), options_of(options), graph=whole, **solving)


@checked
def compare(
    graph: GraphLike,
    topology: TopologyLike,
    options: OptionsLike = None,
    *,
    methods: str | Iterable[str] | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    workers: int | None = None,
    on_progress: "Callable[[Progress], None]" = silent,
    stop: Event | None = None,
    pins: Pins = (),
    colocate: Together = (),
    issue: str = "none",
    calibration: Files = (),
    **step: Unpack[StepOptions],
) -> "Comparison":
    """The plans of all methods for a graph on a machine, best first, with gaps to the best lower bound.

    Examples
    --------
    >>> comparison = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods="single, heft, list")
    >>> comparison.to_frame()["method"].tolist()[-1]
    'single'
    """
    from dlplacer.planning.compare import compare as compare_methods

    made, machine = problem_of(graph, topology, calibration, step)
    solving: dict[str, Any] = {"methods": methods, "time_limit_s": time_limit_s, "seed": seed, "workers": workers}
    solving |= {"pins": pins_of(pins, machine), "colocate": together_of(colocate), "issue": issue}
    return compare_methods(made, machine, options_of(options), on_progress=on_progress, stop=stop, **solving)


@checked
def pipeline(
    graph: GraphLike,
    topology: TopologyLike,
    *,
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    calibration: Files = (),
    on_progress: Callable[[int, int], None] = silent,
    **step: Unpack[CaptureOptions],
) -> "PipelinePlan":
    """The pipeline of least predicted step time: contiguous stages, and the order of micro-batches on their devices.

    Raises InputError if an argument is invalid, ops are pinned, or an op has no time on a device; InfeasibleError if
    no division into stages fits the memories, with the least memory that the fullest stage needs.

    Examples
    --------
    >>> plan = dp.pipeline("inception_v3-infer", "dgx1-v100-2gpu", stages=2, micro_batches=4)
    >>> len(plan.stages), plan.micro_batches
    (2, 4)
    """
    from dlplacer.planning.pipeline.pipeline_search import plan_pipeline

    made, machine = problem_of(graph, topology, calibration, step)
    asked: dict[str, Any] = {"stages": stages, "micro_batches": micro_batches, "schedule": schedule}
    return plan_pipeline(made, machine, **asked, on_progress=on_progress)


@checked
def plan_of_pipeline(
    found: "PipelinePlan",
    graph: GraphLike,
    topology: TopologyLike,
    *,
    calibration: Files = (),
) -> Plan:
    """The plan that executes a pipeline.

    Raises MismatchError if the graph is not the pipeline's step; InfeasibleError if a memory is too small.

    Examples
    --------
    >>> found = dp.pipeline("dlplacer.models:mlp", "cpu-2core", stages=2, micro_batches=2)
    >>> cut = dp.capture("dlplacer.models:mlp", micro_batches=2)
    >>> dp.plan_of_pipeline(found, cut, "cpu-2core").method == f"pipeline/{found.schedule}"
    True
    """
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
    from dlplacer.planning.pipeline.placed_pipeline import placed_pipeline

    expect("", "found", found, PipelinePlan, "the result of dp.pipeline")
    made, machine = problem_of(graph, topology, calibration)
    return placed_pipeline(found, made, machine)


def problem_of(
    graph: GraphLike, topology: TopologyLike, calibration: Files = (), step: Mapping[str, Any] | None = None
) -> tuple[OpGraph, Topology]:
    """Graph and machine, with the measured times of calibration files; warns how many ops each file covers."""
    made, machine = graph_of(graph, step=step), machine_of(topology)
    if calibration:
        from dlplacer.machines.costs.calibration import calibrated

        made, machine, notes = calibrated(with_times(made, machine), machine, calibration)
        note(*notes)
    return made, machine


@checked
def explain(
    plan: PlanLike,
    dispatch_s: float = 0.0,
    budget_s: float = 10.0,
    *,
    why: Sequence[str] = (),
    workers: int | None = None,
    on_progress: Callable[[str, int, int], None] = silent,
    stop: Event | None = None,
) -> "Explanation":
    """The causes of a plan's step time, and the gains of several changes, found by solving again within the budget.

    Changes: links twice as fast, one more device of each type, a quarter more memory, each of the three longest ops
    twice as fast; with `why`, the longest op that each pattern matches on every other device instead.

    Examples
    --------
    >>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft")
    >>> sorted(dp.explain(result, budget_s=0).limits_s)
    ['critical path', 'work']
    >>> machine = dp.Topology([dp.Device("d0"), dp.Device("d1", "slow")], links=[dp.Link("d0", "d1", 1e9)])
    >>> graph = dp.OpGraph([dp.Op("a", "mm", {"device": 1e-3, "slow": 3e-3})])
    >>> [found] = dp.explain(dp.place(graph, machine), budget_s=2, why="a").elsewhere
    >>> found.device, found.makespan_s
    ('d1', 0.003)
    """
    from dlplacer.planning.what_if import elsewhere, what_would_help
    from dlplacer.problem.dispatch import with_one_process
    from dlplacer.problem.simulate import replay_plan
    from dlplacer.report.explanation import explain as explain_plan

    given = whole_plan_of(plan)
    given.options.require_makespan("explain")
    times_s = {entry.op: entry.end_s - entry.start_s for entry in given.ops}
    ops = [max(matching(given.graph, pattern), key=times_s.__getitem__) for pattern in why]
    if ops and not budget_s > 0:
        raise InputError(f"budget_s is {budget_s}; it must be positive")
    given = replay_plan(given, given.graph, with_one_process(given.topology, dispatch_s)) if dispatch_s else given
    found, solving = explain_plan(given), dict[str, Any](workers=workers, stop=stop)
    if ops:
        asked = (elsewhere(given, op, budget_s / len(ops), **solving) for op in ops)
        return replace(found, elsewhere=tuple(chain.from_iterable(asked)))
    if not budget_s:
        return found
    return replace(found, what_would_help=what_would_help(given, budget_s, on_progress=on_progress, **solving))


@checked
def check_plan(plan: PlanLike) -> None:
    """Check a plan against every rule of the problem.

    Raises CheckError with every violation.

    Examples
    --------
    >>> dp.check_plan(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    """
    from dlplacer import check

    check.check_plan(plan_of(plan))


@checked
def violations(plan: PlanLike) -> tuple[Violation, ...]:
    """Every violation of the problem's rules by a plan, with the numbers; empty if the plan is valid.

    Examples
    --------
    >>> dp.violations(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    ()
    """
    from dlplacer import check

    return check.violations(plan_of(plan))
