"""Run a plan over several processes and replicas, predicted against measured, numbers against one process."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.files import plan_to_dict
from dlplacer.files.plan_file import plan_of_dict
from dlplacer.frontend.torch.batch_part import part_of
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.measure.fidelity.medians import measured_medians
from dlplacer.measure.fidelity.prediction import Prediction
from dlplacer.measure.fidelity.ranks_numerics import Differences, compare_with_one_process
from dlplacer.measure.fidelity.ranks_prediction import RanksPredictor
from dlplacer.measure.fidelity.ranks_recording import mean_op_times, record_over_ranks, recorded_plan
from dlplacer.measure.fidelity.ranks_report import RanksReport
from dlplacer.measure.fidelity.recording import Recording, median_recording
from dlplacer.measure.fidelity.run_report import device_uses, worst_offenders
from dlplacer.measure.fidelity.side_by_side import side_by_side
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.apply_over_ranks import apply_in_group, give_up, open_local, require_replicas
from dlplacer.runtime.distributed.collective_ops import COLLECTIVE, with_collectives
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S, RankGroup
from dlplacer.runtime.distributed.measured_network import measured_all_reduce
from dlplacer.runtime.distributed.rank_module import RankModule
from dlplacer.runtime.distributed.ranks import Ranks, parse_ranks
from dlplacer.runtime.distributed.replicate import DEFAULT_BUCKET_BYTES, replicated_plan
from dlplacer.runtime.placed.apply import of_captured_ops

_RECORDED = 5


@dataclass(frozen=True)
class RanksRun:
    """A report, and the step of all ranks as predicted under measured costs and as recorded, both as plans.

    Their devices are named after ranks: ``rank0/d0``, ``rank0/network``; see `dlplacer.measure.fidelity.side_by_side`.
    """

    report: RanksReport
    predicted: Plan
    measured: Plan


def run_over_ranks(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    *,
    replicas: int = 1,
    cut: bool = True,
    steps: int = 10,
    warmup: int = 3,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> RanksRun:
    """On every process of a group: run the plan, and compare it with its prediction and with one process.

    Parameters
    ----------
    job
        With the whole batch, of which every replica takes its part; with `cut` False, what every replica takes.

    Raises
    ------
    InputError
        If the job does not train, or there are no steps to time.
    As `dlplacer.runtime.distributed.apply_ranks` and `PlacedModule.step` do.
    """
    if job.mode != "train":
        raise InputError("a plan over several processes is timed in training; capture with mode='train'")
    if steps < 1 or warmup < 0:
        raise InputError(f"a run of {steps} steps after {warmup} cannot be timed; give at least 1 and 0")
    if "collectives" in (plan.graph.capture or {}):
        require_replicas(plan, replicas)
    group = RankGroup(parse_ranks(plan, devices, replicas), timeout_s)
    opened: dict[str, RuntimeDevice] = {}
    try:
        opened.update(group.agreed(lambda: open_local(group)))
        parts = [part_of(job, number, replicas) if cut else job for number in range(replicas)]
        whole = job if cut and replicas > 1 else None
        found = _measure(plan, group, opened, parts, whole, steps, warmup, bucket_bytes)
    except BaseException as error:
        give_up(group, opened, error)
        raise
    return _run(found, group.ranks, steps)


@dataclass(frozen=True)
class _Figures:
    """What all processes measured together; the same on each."""

    planned: Plan
    prediction: Prediction
    line: AlphaBeta
    differences: Differences
    medians: Mapping[str, float]
    recordings: list[Recording]


def _measure(
    plan: Plan,
    group: RankGroup,
    opened: Mapping[str, RuntimeDevice],
    parts: Sequence[Job],
    whole: Job | None,
    steps: int,
    warmup: int,
    bucket_bytes: int,
) -> _Figures:
    """Measure machine and ops, then the placed step; closes the devices and the group.

    Parameters
    ----------
    parts
        [replica] → its part of the job.
    whole
        The job with all parts, if they are several.
    """
    job = parts[group.replica]
    described = plan.graph.capture or {}
    captured = group.agreed(lambda: capture_job(job, described["rewrites"], bool(described.get("colocate_backward"))))
    line = measured_all_reduce(group)
    made = group.agreed(lambda: None if group.rank else _planned(plan, captured, len(parts), line, bucket_bytes))
    planned = plan_of_dict(group.gathered(made and plan_to_dict(made))[0], "the plan of rank 0")
    if all(device.torch_device.type == "cpu" for device in opened.values()):
        reserve_heap(sum(op.footprint_bytes for op in planned.graph.ops))
    predictor = RanksPredictor(job, planned, with_collectives(captured, planned), group, opened, line)
    reference = copy.deepcopy(job.module)
    with closing(apply_in_group(job, planned, group, opened)) as placed:
        differences = compare_with_one_process(placed, parts, whole, reference)
        medians = _medians(placed, job, reference, predictor, steps, warmup)
        prediction = predictor.predict(steps)
        recordings = record_over_ranks(placed, lambda: _placed_step(placed, job), min(steps, _RECORDED))
    return _Figures(planned, prediction, line, differences, medians, recordings)


def _run(found: _Figures, ranks: Ranks, steps: int) -> RanksRun:
    prediction, graph = found.prediction, found.prediction.plan.graph
    shown = side_by_side(prediction.plan, ranks)
    measured = recorded_plan(shown, median_recording(found.recordings))
    baseline_s, measured_s = found.medians["baseline"], found.medians["placed"]
    report = RanksReport(
        replicas=ranks.replicas,
        ranks=ranks.count,
        baseline_s=baseline_s,
        predicted_s=prediction.step_s,
        measured_s=measured_s,
        predicted_speedup=ranks.replicas * prediction.serial_s / prediction.step_s,
        measured_speedup=ranks.replicas * baseline_s / measured_s,
        prediction_error=abs(prediction.step_s - measured_s) / measured_s,
        max_abs_error=found.differences.max_abs_error,
        full_batch_error=found.differences.full_batch_error,
        plan_makespan_s=found.planned.makespan_s,
        host_s=prediction.host_s,
        all_reduce_latency_s=found.line.latency_s,
        all_reduce_s_per_byte=found.line.s_per_byte,
        buckets=sum(op.kind == COLLECTIVE for op in graph.ops),
        steps=steps,
        devices=tuple(str(owner) for owners in ranks.owners for owner in owners.values()),
        draws=found.differences.draws,
        use=device_uses(shown, measured),
        offenders=worst_offenders(prediction.typical, mean_op_times(found.recordings, ranks, list(graph.index))),
    )
    return RanksRun(report, shown, measured)


def _planned(plan: Plan, captured: Captured, replicas: int, line: AlphaBeta, bucket_bytes: int) -> Plan:
    plan = replace(plan, options=replace(plan.options, step="joint"))
    if "collectives" in (plan.graph.capture or {}):
        return plan
    plan = of_captured_ops(plan, captured.graph)
    return plan if replicas == 1 else replicated_plan(plan, replicas, line, bucket_bytes)


def _placed_step(placed: RankModule, job: Job) -> torch.Tensor:
    placed.zero_grad(set_to_none=True)
    return placed.step(*job.args, *job.targets, **job.kwargs)


def _medians(
    placed: RankModule, job: Job, reference: nn.Module, predictor: RanksPredictor, steps: int, warmup: int
) -> dict[str, float]:
    """Seconds of a step in eager PyTorch (mean of all processes) and placed (slowest process).

    They take turns with each other and with the steps that the prediction rests on.
    """
    device = next(iter(placed.devices.values()))
    eager = EagerStep(job, reference, device.torch_device)

    def eager_step() -> None:
        def step() -> None:
            eager()
            device.synchronize()

        device.submit(step).result()

    def placed_step() -> None:
        _placed_step(placed, job)

    def timed(step: Callable[[], object]) -> float:
        """The same on all processes, so that they agree on when the time is steady."""
        placed.group.gathered(None)
        begin = time.perf_counter()
        step()
        everyone = placed.group.gathered(time.perf_counter() - begin)
        return fmean(everyone) if step is eager_step else float(max(everyone))

    variants = {"baseline": eager_step, "placed": placed_step, "predicted": predictor.step}
    return measured_medians(variants, steps, warmup, timed, {"predicted": predictor.untimed_step})
