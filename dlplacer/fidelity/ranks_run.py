"""Run a plan over several processes and replicas, predicted against measured, numbers against one process."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from dlplacer.costs.alpha_beta import AlphaBeta
from dlplacer.devices.allocator import reserve_heap
from dlplacer.devices.base import Device
from dlplacer.distributed.apply import apply_in_group, open_local, require_replicas
from dlplacer.distributed.collectives import COLLECTIVE, with_collectives
from dlplacer.distributed.group import DEFAULT_TIMEOUT_S, RankGroup
from dlplacer.distributed.measure import measured_all_reduce, measured_machine
from dlplacer.distributed.module import RankModule
from dlplacer.distributed.network import with_network
from dlplacer.distributed.parts import part_of
from dlplacer.distributed.ranks import parse_ranks
from dlplacer.distributed.replicate import DEFAULT_BUCKET_BYTES, replicated_plan, with_exchange_times
from dlplacer.errors import InputError
from dlplacer.fidelity.eager import EagerStep
from dlplacer.frontend.capture import Captured, capture_job
from dlplacer.frontend.job import Job
from dlplacer.plan import Plan
from dlplacer.profile.op_times import profile_ops, with_measured_times
from dlplacer.runtime.apply import of_captured_ops
from dlplacer.simulate import replay_plan


@dataclass(frozen=True)
class RanksReport:
    """What a run over several processes measured: medians in seconds per step.

    Attributes
    ----------
    baseline_s
        Eager PyTorch on one device and one replica's batch, on every process at the same time; their mean.
    predicted_s
        Replay of the plan under op times, links and all-reduces that were just measured by all processes at once.
    measured_s
        The placed step on the slowest process.
    predicted_speedup, measured_speedup
        Samples per second over those of one device: replicas × serial op times ÷ predicted, replicas × baseline ÷
        measured.
    prediction_error
        |predicted − measured| ÷ measured.
    max_abs_error
        Largest difference of the loss and any gradient (or updated parameter) to one process that takes the mean over
        the replicas' parts.
    full_batch_error
        The same to one process on the whole batch at once: larger where batch norm sees other batches. None where the
        replicas got one and the same batch.
    all_reduce_latency_s, all_reduce_s_per_byte
        Line of the measured all-reduce; 0 with one replica.
    """

    replicas: int
    ranks: int
    baseline_s: float
    predicted_s: float
    measured_s: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    full_batch_error: float | None
    plan_makespan_s: float
    all_reduce_latency_s: float
    all_reduce_s_per_byte: float
    buckets: int
    steps: int
    devices: tuple[str, ...]
    step: str = "joint"

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --replicas N --json`` prints."""
        return asdict(self)


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
) -> RanksReport:
    """On every process of a group: run the plan, and compare it with its prediction and with one process.

    Parameters
    ----------
    job
        With the whole batch, of which every replica takes its part; with `cut` False, what every replica takes.

    Raises
    ------
    InputError
        If the job does not train, or there are no steps to time.
    As `dlplacer.distributed.apply_ranks` and `PlacedModule.step` do.
    """
    if job.mode != "train":
        raise InputError("a plan over several processes is timed in training; capture with mode='train'")
    if steps < 1 or warmup < 0:
        raise InputError(f"a run of {steps} steps after {warmup} cannot be timed; give at least 1 and 0")
    if "collectives" in (plan.graph.capture or {}):
        require_replicas(plan, replicas)
    group = RankGroup(parse_ranks(plan, devices, replicas), timeout_s)
    opened: dict[str, Device] = {}
    try:
        opened.update(open_local(group))
        parts = [part_of(job, number, replicas) if cut else job for number in range(replicas)]
        mine = parts[group.replica]
        described = plan.graph.capture or {}
        captured = capture_job(mine, described["rewrites"], bool(described.get("colocate_backward")))
        line = measured_all_reduce(group)
        made = _planned(plan, captured, replicas, line, bucket_bytes) if group.rank == 0 else None
        planned: Plan = group.gathered(made)[0]
        predicted = _predicted(mine, planned, with_collectives(captured, planned), group, opened, line)
        reference = copy.deepcopy(job.module)
        placed = apply_in_group(mine, planned, group, opened)
        try:
            errors = _errors(placed, mine, parts, job if cut else None, reference)
            medians = _medians(placed, mine, reference, steps, warmup)
        finally:
            placed.close()
    except BaseException:
        for device in opened.values():
            device.close()
        group.close()
        raise
    return _report(group, planned, predicted, line, medians, errors, steps)


def _planned(plan: Plan, captured: Captured, replicas: int, line: AlphaBeta, bucket_bytes: int) -> Plan:
    plan = replace(plan, options=replace(plan.options, step="joint"))
    if "collectives" in (plan.graph.capture or {}):
        return plan
    plan = of_captured_ops(plan, captured.graph)
    return plan if replicas == 1 else replicated_plan(plan, replicas, line, bucket_bytes)


def _predicted(
    job: Job, plan: Plan, whole: Captured, group: RankGroup, opened: Mapping[str, Device], line: AlphaBeta
) -> Plan:
    """The plan under costs that all processes measure at the same time."""
    local = list(opened.values())
    if all(device.torch_device.type == "cpu" for device in local):
        reserve_heap(sum(op.footprint_bytes for op in plan.graph.ops))
    machine = measured_machine(group, opened)
    found = group.gathered(profile_ops(job, whole, local))
    kinds = sorted({kind for times in found for kind in times})
    times = {
        kind: {op.id: fmean(theirs[kind][op.id] for theirs in found if kind in theirs) for op in plan.graph.ops}
        for kind in kinds
    }
    graph = with_measured_times(plan.graph, times)
    if group.ranks.replicas == 1:
        return replay_plan(plan, graph, machine)
    topology = with_network(machine, plan.options.delay)
    return replay_plan(plan, with_exchange_times(graph, topology, line), topology)


def _errors(
    placed: RankModule, mine: Job, parts: Sequence[Job], whole: Job | None, reference: nn.Module
) -> tuple[float, float | None]:
    """Largest difference after one step to one process on the parts, and on the whole batch; the worst of all ranks."""
    placed.zero_grad(set_to_none=True)
    loss = placed.step(*mine.args, *mine.targets, **mine.kwargs)
    updated = mine.update is not None
    held: dict[str, torch.Tensor] = {}
    for name, value in placed.named_parameters():
        tensor = value.detach() if updated else value.grad
        if tensor is not None and not tensor.is_meta:
            held[name] = tensor

    def worst(jobs: Sequence[Job]) -> float:
        expected_loss, expected = _one_process(jobs, copy.deepcopy(reference), updated)
        differences = [abs(float(loss) - expected_loss)]
        differences += [float((held[name].cpu() - expected[name]).abs().max()) for name in held]
        return float(max(placed.group.gathered(max(differences))))

    return worst(parts), None if whole is None else worst([whole])


def _one_process(jobs: Sequence[Job], module: nn.Module, updated: bool) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss and mean gradients, or the parameters that they lead to, of one process that takes parts in turn."""
    losses: list[float] = []
    sums: dict[str, torch.Tensor] = {}
    for job in jobs:
        step = EagerStep(replace(job, optimizer=None), module, torch.device("cpu"))
        losses.append(float(step()))
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad / len(jobs)
    if updated:
        from dlplacer.runtime.update import Updater

        updater = Updater(jobs[0].update)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in sums:
                    updater(name, parameter, sums[name])
                sums[name] = parameter.detach()
    return fmean(losses), sums


def _medians(placed: RankModule, job: Job, reference: nn.Module, steps: int, warmup: int) -> tuple[float, float]:
    """Seconds of a step in eager PyTorch (mean of all processes) and placed (slowest process), taking turns."""
    device = next(device for device in placed.devices.values())
    eager = EagerStep(job, reference, device.torch_device)

    def eager_step() -> None:
        def step() -> None:
            eager()
            device.synchronize()

        device.submit(step).result()

    def placed_step() -> None:
        placed.zero_grad(set_to_none=True)
        placed.step(*job.args, *job.targets, **job.kwargs)

    variants: tuple[Callable[[], None], ...] = (eager_step, placed_step)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(warmup + steps):
        for variant, found in zip(variants, times, strict=True):
            placed.group.gathered(None)
            begin = time.perf_counter()
            variant()
            if number >= warmup:
                found.append(time.perf_counter() - begin)
    everyone = placed.group.gathered(tuple(map(median, times)))
    return fmean(theirs[0] for theirs in everyone), max(theirs[1] for theirs in everyone)


def _report(
    group: RankGroup,
    planned: Plan,
    predicted: Plan,
    line: AlphaBeta,
    medians: tuple[float, float],
    errors: tuple[float, float | None],
    steps: int,
) -> RanksReport:
    ranks, graph = group.ranks, predicted.graph
    kind = predicted.topology.devices[0].type
    exchange = (COLLECTIVE, "pack", "unpack")
    serial_s = sum(op.time_on(kind) or 0.0 for op in graph.ops if op.kind not in exchange)
    baseline_s, measured_s = medians
    return RanksReport(
        replicas=ranks.replicas,
        ranks=ranks.count,
        baseline_s=baseline_s,
        predicted_s=predicted.makespan_s,
        measured_s=measured_s,
        predicted_speedup=ranks.replicas * serial_s / predicted.makespan_s,
        measured_speedup=ranks.replicas * baseline_s / measured_s,
        prediction_error=abs(predicted.makespan_s - measured_s) / measured_s,
        max_abs_error=errors[0],
        full_batch_error=errors[1],
        plan_makespan_s=planned.makespan_s,
        all_reduce_latency_s=line.latency_s,
        all_reduce_s_per_byte=line.s_per_byte,
        buckets=sum(op.kind == COLLECTIVE for op in graph.ops),
        steps=steps,
        devices=tuple(str(owner) for owners in ranks.owners for owner in owners.values()),
    )
