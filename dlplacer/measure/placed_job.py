"""A job that runs as planned: what is compared, timed and recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.eager import tensors_in
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.placed.placed_module import PlacedModule


@dataclass(frozen=True)
class PlacedJob:
    """A plan of a job, placed.

    Attributes
    ----------
    captured
        The captured step of all processes of a replica; its collectives are not bound to a group.
    parts
        [replica] → its part of the job.
    whole
        The job with the batch of which the parts are cut; None if there is none.
    replica
        That of this process.
    """

    placed: PlacedModule
    captured: Captured
    parts: Sequence[Job]
    whole: Job | None = None
    replica: int = 0

    @property
    def job(self) -> Job:
        """The part of this process's replica."""
        return self.parts[self.replica]

    @property
    def devices(self) -> dict[str, RuntimeDevice]:
        """Device of the plan → device, for those of this process that compute."""
        return {name: device for name, device in self.placed.devices.items() if not name.startswith(NETWORK)}

    def step(self) -> tuple[torch.Tensor, ...]:
        """Take a step to its end, without the gradients of the last one; the loss, or the tensors of inference."""
        self.placed.zero_grad(set_to_none=True)
        if self.job.mode == "infer":
            result = tensors_in(self.placed(*self.job.args, **self.job.kwargs))
        else:
            result = (self.placed.step(*self.job.args, *self.job.targets, **self.job.kwargs),)
        for device in self.devices.values():
            device.drain()
        return result
