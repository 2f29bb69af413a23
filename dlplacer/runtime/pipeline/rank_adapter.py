"""The adapter to torch.distributed.pipelining: one rank's stages, run in our order.

Known to work with torch 2.11 to 2.13. torch's runtime takes the order as text and inserts the sends and receives.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError
from dlplacer.planning.pipeline.action import Order, stage_ranks
from dlplacer.runtime.pipeline.forward_graph import Forward
from dlplacer.runtime.pipeline.stage_modules import StageModule


class PipelineRank:
    """The stages of this process, and the schedule that runs them together with those of the others.

    Attributes
    ----------
    own
        Number of stage → its module, for the stages of this process.
    """

    def __init__(self, forward: Forward, parts: Sequence[StageModule], order: Order, device: torch.device) -> None:
        rank = dist.get_rank()
        if dist.get_world_size() != len(order):
            raise InputError(
                f"the pipeline has {len(order)} ranks, but {dist.get_world_size()} processes were started; use "
                f"torchrun --nproc-per-node {len(order)}"
            )
        self._forward = forward
        self.own = {stage: parts[stage] for stage, owner in stage_ranks(order).items() if owner == rank}
        self._schedule = torch_schedule(self.own, len(parts), forward, order, device)
        self._inputs = dict(zip(map("input_{}".format, forward.inputs), forward.job.args, strict=True))
        self._targets = _packed(forward.job.targets)
        self._is_last = len(parts) - 1 in self.own

    def step(self) -> torch.Tensor | None:
        """Forward and backward of the whole batch; the loss on the last stage's rank. Gradients add up in ``.grad``."""
        losses: list[torch.Tensor] = []
        target = self._targets if self._is_last else None
        self._schedule.step(target=target, losses=losses, return_outputs=False, **self._inputs)
        return torch.stack([loss.detach() for loss in losses]).mean() if self._is_last else None

    def zero_grad(self) -> None:
        """Drop the gradients of this process's stages."""
        for part in self.own.values():
            part.module.zero_grad(set_to_none=True)

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Parameter → gradient, for the parameters of this process's stages."""
        return {
            name: parameter.grad
            for part in self.own.values()
            for name, parameter in part.module.named_parameters()
            if parameter.grad is not None
        }


def torch_schedule(
    own: Mapping[int, StageModule], stages: int, forward: Forward, order: Order, device: torch.device
) -> Any:
    """torch's pipeline runtime for this process's stages in the given order; the process group must be there."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

    torch_stages = [
        PipelineStage(part.module, stage, stages, device, input_args=part.examples_in, output_args=part.examples_out)
        for stage, part in sorted(own.items())
    ]
    runtime: Any = _PipelineScheduleRuntime
    schedule = runtime(torch_stages, forward.micro_batches, loss_fn=forward.job.loss)
    actions: dict[int, list[_Action | None]] = {
        rank: [_Action.from_str(str(action)) for action in entries] for rank, entries in enumerate(order)
    }
    schedule._prepare_schedule_with_comms(actions)
    return schedule


def _packed(targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if len(targets) != 1:
        raise InputError(f"a pipeline's loss takes one target; the job has {len(targets)}: put them into one tensor")
    return targets[0]
