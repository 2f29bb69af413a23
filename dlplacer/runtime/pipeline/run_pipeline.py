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

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.frontend.torch.job import Job
from dlplacer.planning.pipeline.action import Order
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.pipeline_timeline import play
from dlplacer.planning.pipeline.schedules import SCHEDULES
from dlplacer.runtime.pipeline.forward_graph import forward_of, op_graph
from dlplacer.runtime.pipeline.measured_costs import (
    TransferLine,
    agreed,
    measured_line,
    measured_stages,
    with_transfers,
)
from dlplacer.runtime.pipeline.rank_adapter import PipelineRank
from dlplacer.runtime.pipeline.stage_modules import stage_modules
from dlplacer.runtime.pipeline.stage_times import op_times

CORE = "cpu-core"
_LEAST_S_PER_BYTE = 1e-12


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
    line = measured_line()
    count, schedule, order, stage_of, planned_s = agreed(lambda: _planned(job, line, micro_batches, schedules))
    forward = forward_of(job, count)
    parts = stage_modules(forward, stage_of, 1 + max(stage_of.values()))
    pipeline = PipelineRank(forward, parts, order, torch.device("cpu"))
    in_two = any(action.kind == "W" for actions in order for action in actions)
    times = measured_stages(forward, parts, pipeline.own, in_two)
    times, hops = with_transfers(times, parts, order, line)
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
    job: Job, line: TransferLine, micro_batches: Sequence[int], schedules: Sequence[str]
) -> tuple[int, str, Order, Mapping[str, int], float]:
    ranks = dist.get_world_size()
    devices = tuple(Device(f"rank{rank}", CORE) for rank in range(ranks))
    rate = 1 / max(line.s_per_byte, _LEAST_S_PER_BYTE)
    pairs = [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    links = tuple(Link(f"rank{a}", f"rank{b}", rate, line.latency_s) for a, b in pairs)
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


def _largest_difference(pipeline: PipelineRank, plain: _Plain) -> float:
    ours, theirs = pipeline.step(), plain.step()
    expected = {name: parameter.grad for name, parameter in plain.module.named_parameters()}
    pairs = [(gradient, expected[name]) for name, gradient in pipeline.gradients().items()]
    pairs += [(ours, theirs)] if ours is not None else []
    worst = torch.tensor([max((float((a - b).abs().max()) for a, b in pairs if b is not None), default=0.0)])
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
    found: tuple[float, float] = agreed(lambda: (median(baseline), median(measured)))
    return found


def pin(rank: int) -> None:
    """Give this process one core, one torch thread, and a heap that keeps its memory."""
    from dlplacer.machines.usable_cores import usable_cores
    from dlplacer.runtime.devices.allocator import keep_heap, reserve_heap

    cores = usable_cores()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    keep_heap()
    reserve_heap(2**30)
