"""What a pipeline's prediction rests on, measured by all ranks together: stages while all are busy, and transfers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from dlplacer.planning.pipeline.action import Order, stage_ranks
from dlplacer.planning.pipeline.pipeline_timeline import Hop, StageTimes
from dlplacer.runtime.pipeline.forward_graph import Forward
from dlplacer.runtime.pipeline.stage_modules import StageModule
from dlplacer.runtime.pipeline.stage_times import stage_times
from dlplacer.runtime.profile.quartile import lower_quartile

_PROBE_BYTES = (4, 2**20)
_TRIPS = 30


@dataclass(frozen=True)
class TransferLine:
    """A message from one rank to another: a latency and a time per byte.

    Attributes
    ----------
    core_latency_s, core_s_per_byte
        Processor time of it on each of the two cores, which a stage there cannot use meanwhile.
    """

    latency_s: float
    s_per_byte: float
    core_latency_s: float
    core_s_per_byte: float

    def passing_s(self, size_bytes: int) -> float:
        """Seconds on the route that neither core is busy with it."""
        whole_s = self.latency_s + self.s_per_byte * size_bytes
        return max(0.0, whole_s - 2 * self.core_s(size_bytes))

    def core_s(self, size_bytes: int) -> float:
        """Seconds of either core."""
        return self.core_latency_s + self.core_s_per_byte * size_bytes


def agreed(decide: Callable[[], Any]) -> Any:
    """What rank 0 decides, on all ranks."""
    found = [decide() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def measured_line() -> TransferLine:
    """Timed round trips between ranks 0 and 1, while the others wait."""
    small, large = (_transfer_s(size) for size in _PROBE_BYTES)
    slopes = [max(0.0, (b - a) / (_PROBE_BYTES[1] - _PROBE_BYTES[0])) for a, b in zip(small, large, strict=True)]
    line: TransferLine = agreed(lambda: TransferLine(small[0], slopes[0], small[1], slopes[1]))
    return line


def measured_stages(
    forward: Forward, parts: Sequence[StageModule], own: Mapping[int, StageModule], in_two: bool
) -> list[StageTimes]:
    """[stage] → seconds; every rank times its own while the others are as busy."""
    inputs = dict(zip(map("input_{}".format, forward.inputs), forward.chunks()[0], strict=True))
    received: list[tuple[torch.Tensor, ...]] = [()]
    with torch.no_grad():
        for part in parts[:-1]:
            received.append(tuple(pytree.tree_leaves(part.module(*received[-1], **inputs))))
    targets = forward.targets()[0]
    job_loss: Any = forward.job.loss
    times = {}
    dist.barrier()
    for stage, part in own.items():
        loss = (lambda output: job_loss(output, *targets)) if stage == len(parts) - 1 else None
        times[stage] = stage_times(part, received[stage], inputs, loss, in_two)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, times)
    merged = {stage: entry for each in found for stage, entry in each.items()}
    return [merged[stage] for stage in range(len(parts))]


def with_transfers(
    times: Sequence[StageTimes], parts: Sequence[StageModule], order: Order, line: TransferLine
) -> tuple[list[StageTimes], list[Hop]]:
    """Stages with the time in which their cores send and receive, and the routes between them."""
    ranks = stage_ranks(order)
    found, hops = list(times), []
    for stage, part in enumerate(parts[:-1]):
        if ranks[stage] == ranks[stage + 1]:
            hops.append(Hop())
            continue
        there = [example.numel() * example.element_size() for example in part.examples_out]
        back = [size for size, example in zip(there, part.examples_out, strict=True) if example.requires_grad]
        ahead_s, behind_s = sum(map(line.core_s, there)), sum(map(line.core_s, back))
        for end in (stage, stage + 1):
            entry = found[end]
            found[end] = replace(
                entry,
                forward_s=entry.forward_s + ahead_s,
                backward_s=entry.backward_s + behind_s,
                input_s=None if entry.input_s is None else entry.input_s + behind_s,
            )
        hops.append(Hop(sum(map(line.passing_s, there)), sum(map(line.passing_s, back))))
    return found, hops


def _transfer_s(size_bytes: int) -> tuple[float, float]:
    """Seconds of a message, and processor seconds of either end."""
    tensor = torch.zeros(size_bytes // 4)
    times = []
    dist.barrier()
    begin_core = time.process_time()
    if dist.get_rank() < 2:
        for _ in range(_TRIPS):
            begin = time.perf_counter()
            for sender in (0, 1):
                if dist.get_rank() == sender:
                    dist.send(tensor, 1 - sender)
                else:
                    dist.recv(tensor, sender)
            times.append((time.perf_counter() - begin) / 2)
    core_s = (time.process_time() - begin_core) / (2 * _TRIPS)
    dist.barrier()
    return (lower_quartile(times), core_s) if times else (0.0, 0.0)
