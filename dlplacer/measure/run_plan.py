"""Run a plan and measure it against plain PyTorch: predicted against measured, numbers against numbers."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.files import plan_to_dict
from dlplacer.files.plan_file import plan_of_dict
from dlplacer.frontend.torch.batch_part import part_of
from dlplacer.frontend.torch.job import Job
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.baselines import home_of_all
from dlplacer.measure.measurement import Request, StepReport, measure, silent
from dlplacer.measure.placed_job import PlacedJob
from dlplacer.measure.process_group import OneProcess, SeveralProcesses
from dlplacer.measure.run_report import Run
from dlplacer.planning.pipeline.micro_batch_names import BatchCut
from dlplacer.runtime.distributed.apply_over_ranks import apply_in_group, opened_group, require_replicas, settings_of
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S
from dlplacer.runtime.distributed.measured_network import measured_all_reduce
from dlplacer.runtime.distributed.replicate import DEFAULT_BUCKET_BYTES, replicated_plan
from dlplacer.runtime.placed.apply import (
    apply,
    capture_as_planned,
    of_captured_ops,
    require_captured,
)


@dataclass(frozen=True)
class OverRanks:
    """How a plan runs over several processes.

    Attributes
    ----------
    cut
        Whether every replica takes its part of the job's batch; else all take the job as it is.
    """

    replicas: int = 1
    cut: bool = True
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    segments: str = "eager"


def run(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    steps: int | None = None,
    warmup: int = 3,
    beside: Mapping[str, Plan] | None = None,
    on_progress: StepReport = silent,
    segments: str = "eager",
    compiled: bool | None = None,
) -> Run:
    """Run a plan on devices of this machine and compare it with its prediction and with plain PyTorch.

    The prediction is made anew: links are timed, and alternating with the steps of the placed module every device runs
    its own ops (`Predictor`). `Figures.plan_makespan_s` is what the plan itself promised, under the costs that it was
    made with. No device gets a tensor that the plan does not put there, unless all of the model fits on one.

    Parameters
    ----------
    steps, warmup, on_progress, compiled
        As for `Request`; ``torch.compile`` is timed by default where segments are compiled or captured.
    beside
        Name → another plan of the same job, on devices of the same names; its steps alternate with those of the plan.
    segments
        As in `dlplacer.apply`.

    Raises
    ------
    InputError
        If there are no steps to time.
    As `dlplacer.apply` and `PlacedModule.step` do.
    """
    request = Request(steps, warmup, segments != "eager" if compiled is None else compiled, on_progress)
    reference = copy.deepcopy(job.module) if beside or home_of_all(plan) else job.module
    with ExitStack() as stack:

        def placed(job: Job, plan: Plan) -> PlacedJob:
            module = stack.enter_context(closing(apply(job, plan, devices, segments=segments)))
            return PlacedJob(module, module.captured, [job])

        others = {
            name: placed(replace(job, module=copy.deepcopy(reference)), other) for name, other in (beside or {}).items()
        }
        main = placed(job, plan)
        return measure(main, others, reference, OneProcess(main.devices), request)


def run_over_ranks(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    over: OverRanks = OverRanks(),
    steps: int | None = None,
    warmup: int = 3,
    on_progress: StepReport = silent,
) -> Run:
    """On every process of a group: as `run`, for a plan over ranks; the same on all of them.

    Parameters
    ----------
    job
        With the whole batch, of which every replica takes its part; without `OverRanks.cut`, what every replica takes.

    Raises
    ------
    InputError
        If the job does not train, or there are no steps to time.
    As `dlplacer.runtime.distributed.apply_ranks` and `PlacedModule.step` do.
    """
    request = Request(steps, warmup, on_progress=on_progress)
    if job.mode != "train":
        raise InputError("a plan over several processes is timed in training; capture with mode='train'")
    require_captured(plan)
    if "collectives" in (plan.graph.capture or {}):
        require_replicas(plan, over.replicas)
    with opened_group(plan, devices, over.replicas, over.timeout_s) as (group, opened):
        group.require_same(settings_of(job, plan, over.replicas) | {"steps": steps, "warm-up": warmup, "cut": over.cut})
        parts = [part_of(job, number, BatchCut(over.replicas)) if over.cut else job for number in range(over.replicas)]
        whole = job if over.cut and over.replicas > 1 else None
        line = measured_all_reduce(group)
        made = group.agreed(lambda: None if group.rank else _replicated(parts[0], plan, over, line))
        planned = plan_of_dict(group.gathered(made and plan_to_dict(made))[0], "the plan of rank 0")
        reference = copy.deepcopy(job.module) if home_of_all(planned) else job.module
        with closing(apply_in_group(parts[group.replica], planned, group, opened, over.segments)) as module:
            processes = SeveralProcesses(group, opened, line, planned.options.delay)
            placed = PlacedJob(module, module.whole, parts, whole, group.replica)
            return measure(placed, {}, reference, processes, request)


def _replicated(job: Job, plan: Plan, over: OverRanks, line: AlphaBeta) -> Plan:
    """The plan of the joint step with what exchanges the gradients of several replicas."""
    plan = replace(plan, options=replace(plan.options, step="joint"))
    if "collectives" in (plan.graph.capture or {}):
        return plan
    plan = of_captured_ops(plan, capture_as_planned(job, plan).graph)
    return plan if over.replicas == 1 else replicated_plan(plan, over.replicas, line, over.bucket_bytes)
