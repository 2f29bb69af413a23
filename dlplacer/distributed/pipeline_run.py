"""A pipeline planned, run and measured on the processes that torchrun started; each is one pinned core."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.distributed.pipeline_forward import Forward, forward_of, op_graph
from dlplacer.distributed.pipeline_profile import op_times, stage_times
from dlplacer.distributed.pipeline_rank import PipelineRank
from dlplacer.distributed.pipeline_stages import StageModule, stage_modules
from dlplacer.frontend.job import Job
from dlplacer.pipeline.action import Order
from dlplacer.pipeline.plan import PipelinePlan
from dlplacer.pipeline.schedules import SCHEDULES
from dlplacer.pipeline.search import plan_pipeline
from dlplacer.pipeline.timeline import Hop, StageTimes, play
from dlplacer.topology import Device, Link, Topology

CORE = "cpu-core"
_PROBE_BYTES = (4, 2**20)


@dataclass(frozen=True)
class PipelineReport:
    """What a run measured: medians in seconds per step.

    Attributes
    ----------
    baseline_s
        Plain PyTorch with the whole batch on one of the cores.
    planned_s
        What the plan says, from single ops measured alone.
    predicted_s, predicted_speedup
        The schedule played with the stages' times measured while all cores are busy; baseline ÷ predicted.
    measured_s, measured_speedup
        The step under torch.distributed.pipelining; baseline ÷ measured.
    max_abs_error
        Largest difference of the loss and of any gradient against plain PyTorch on the whole batch.
    """

    name: str
    schedule: str
    micro_batches: int
    stages: int
    baseline_s: float
    planned_s: float
    predicted_s: float
    measured_s: float
    bubble: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    stage_s: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


def run_pipeline(
    job: Job,
    micro_batches: Sequence[int],
    schedules: Sequence[str] = tuple(SCHEDULES),
    steps: int = 9,
    warm_up: int = 4,
) -> PipelineReport:
    """Plan a pipeline over all processes of the default group, run it, and compare.

    Rank 0 times the ops on its core for each number of micro-batches and takes the best plan. Then every rank times its
    own stages, all at the same time, and the schedule is played with these times: the prediction.

    Parameters
    ----------
    job
        The same in all processes, with real tensors.
    micro_batches, schedules
        To choose from.
    """
    reference = copy.deepcopy(job.module)
    plain = _Plain(job, reference)
    count, schedule, order, stage_of, planned_s = _agreed(lambda: _planned(job, micro_batches, schedules))
    forward = forward_of(job, count)
    parts = stage_modules(forward, stage_of, 1 + max(stage_of.values()))
    pipeline = PipelineRank(forward, parts, order, torch.device("cpu"))
    times = _measured_stages(forward, parts, pipeline, in_two=any(a.kind == "W" for row in order for a in row))
    hops = _measured_hops(parts, order)
    pipeline.zero_grad()
    error = _largest_difference(pipeline, plain)
    predicted = play(order, times, hops)
    medians = _alternated(pipeline, plain, steps, warm_up)
    baseline_s, measured_s = medians
    return PipelineReport(
        name=type(job.module).__name__,
        schedule=schedule,
        micro_batches=count,
        stages=len(parts),
        baseline_s=baseline_s,
        planned_s=planned_s,
        predicted_s=predicted.step_s,
        measured_s=measured_s,
        bubble=predicted.bubble,
        predicted_speedup=baseline_s / predicted.step_s,
        measured_speedup=baseline_s / measured_s,
        prediction_error=abs(predicted.step_s - measured_s) / measured_s,
        max_abs_error=error,
        stage_s=tuple((entry.forward_s, entry.backward_s) for entry in times),
    )


class _Plain:
    """The job in plain PyTorch on the whole batch."""

    def __init__(self, job: Job, module: nn.Module) -> None:
        self.module, self._job = module, job

    def step(self) -> torch.Tensor:
        self.module.zero_grad(set_to_none=True)
        loss: Any = self._job.loss
        result: torch.Tensor = loss(self.module(*self._job.args), *self._job.targets)
        result.backward()  # type: ignore[no-untyped-call]
        return result.detach()


def _planned(
    job: Job, micro_batches: Sequence[int], schedules: Sequence[str]
) -> tuple[int, str, Order, Mapping[str, int], float]:
    ranks = dist.get_world_size()
    devices = tuple(Device(f"rank{rank}", CORE) for rank in range(ranks))
    links = tuple(Link(f"rank{a}", f"rank{b}", 2e9, 1e-4) for a in range(ranks) for b in range(a + 1, ranks))
    topology = Topology(devices, (), links, name="cores")
    best: PipelinePlan | None = None
    for count in micro_batches:
        forward = forward_of(job, count)
        graph = op_graph(forward, op_times(forward), CORE)
        for schedule in schedules:
            if schedule == "interleaved" and count % ranks:
                continue
            plan = plan_pipeline(
                graph, topology, stages=ranks, micro_batches=count, schedule=schedule, at_micro_batches={count: graph}
            )
            if best is None or plan.step_s < best.step_s:
                best = plan
    job.module.zero_grad(set_to_none=True)
    assert best is not None
    return best.micro_batches, best.schedule, best.order, dict(best.stage_of), best.step_s


def _agreed(decide: Any) -> Any:
    """What rank 0 decides, on all ranks."""
    found = [decide() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def _measured_stages(
    forward: Forward, parts: Sequence[StageModule], pipeline: PipelineRank, in_two: bool
) -> list[StageTimes]:
    """[stage] → seconds; every rank times its own while the others are as busy."""
    inputs = dict(zip(map("input_{}".format, forward.inputs), forward.chunks()[0], strict=True))
    received: list[tuple[torch.Tensor, ...]] = [()]
    with torch.no_grad():
        for part in parts[:-1]:
            received.append(tuple(pytree.tree_leaves(part.module(*received[-1], **inputs))))
    targets = forward.targets()[0]
    job_loss: Any = forward.job.loss
    own = {}
    dist.barrier()
    for stage, part in pipeline.own.items():
        loss = (lambda output: job_loss(output, *targets)) if stage == len(parts) - 1 else None
        own[stage] = stage_times(part, received[stage], inputs, loss, in_two)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    merged = {stage: times for each in found for stage, times in each.items()}
    return [merged[stage] for stage in range(len(parts))]


def _measured_hops(parts: Sequence[StageModule], order: Order) -> list[Hop]:
    """[stage] → seconds to the next rank for what the stage sends, by timed round trips between ranks 0 and 1."""
    if len(order) == 1:
        return [Hop()] * (len(parts) - 1)
    latency_s, large_s = (_one_way_s(size) for size in _PROBE_BYTES)
    s_per_byte = max(0.0, (large_s - latency_s) / _PROBE_BYTES[1])
    line = _agreed(lambda: (latency_s, s_per_byte))
    hops = []
    for part in parts[:-1]:
        there, back = 0.0, 0.0
        for example in part.examples_out:
            size_s = line[0] / len(part.examples_out) + line[1] * example.numel() * example.element_size()
            there += size_s
            back += size_s if example.requires_grad else 0.0
        hops.append(Hop(there, back))
    return hops


def _one_way_s(size_bytes: int, trips: int = 20) -> float:
    tensor = torch.zeros(size_bytes // 4)
    times = []
    dist.barrier()
    if dist.get_rank() < 2:
        for _ in range(trips):
            begin = time.perf_counter()
            for sender in (0, 1):
                if dist.get_rank() == sender:
                    dist.send(tensor, 1 - sender)
                else:
                    dist.recv(tensor, sender)
            times.append(time.perf_counter() - begin)
    dist.barrier()
    return median(times) / 2 if times else 0.0


def _largest_difference(pipeline: PipelineRank, plain: _Plain) -> float:
    ours, theirs = pipeline.step(), plain.step()
    expected = {name: parameter.grad for name, parameter in plain.module.named_parameters()}
    pairs = [(gradient, expected[name]) for name, gradient in pipeline.gradients().items()]
    pairs += [(ours, theirs)] if ours is not None else []
    worst = torch.tensor([max(float((a - b).abs().max()) for a, b in pairs if b is not None)])
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def _alternated(pipeline: PipelineRank, plain: _Plain, steps: int, warm_up: int) -> tuple[float, float]:
    """Median seconds of plain PyTorch on rank 0's core, and of the pipeline; the two take turns."""
    baseline: list[float] = []
    measured: list[float] = []
    for number in range(warm_up + steps):
        for name in ("plain", "pipeline") if number % 2 else ("pipeline", "plain"):
            if name == "pipeline":
                pipeline.zero_grad()
            dist.barrier()
            begin = time.perf_counter()
            if name == "pipeline":
                pipeline.step()
                dist.barrier()
            elif dist.get_rank() == 0:
                plain.step()
            seconds = time.perf_counter() - begin
            dist.barrier()
            if number >= warm_up:
                (measured if name == "pipeline" else baseline).append(seconds)
    found: tuple[float, float] = _agreed(lambda: (median(baseline), median(measured)))
    return found


def pin(rank: int) -> None:
    """Give this process one core, one torch thread, and a heap that keeps its memory."""
    from dlplacer.devices.allocator import keep_heap, reserve_heap
    from dlplacer.devices.cpu import usable_cores

    cores = usable_cores()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    keep_heap()
    reserve_heap(2**30)
