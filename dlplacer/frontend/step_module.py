"""The step as one module: what is traced."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dlplacer.frontend.job import Job
from dlplacer.frontend.stand_in import fake_module, fake_tree


class StepModule(nn.Module):
    """Calls the job's module and loss; its one child is ``module``, so every name starts with ``module.``."""

    def __init__(self, job: Job, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.loss = job.loss
        self.trains = job.mode == "train"
        self.autocast = None if job.autocast is None else getattr(torch, job.autocast)

    def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...]) -> Any:
        """The loss as a 1-tuple when training, else what the module returns."""
        with torch.autocast("cpu", dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            if not self.trains:
                return self.module(*args, **kwargs)
            if self.loss is None:
                return (self.module(*args, *targets, **kwargs),)
            return (self.loss(self.module(*args, **kwargs), *targets),)


def fake_step(job: Job, mode: FakeTensorMode) -> tuple[StepModule, tuple[Any, ...]]:
    """The step and its inputs with stand-ins for all tensors: shapes, dtypes and strides without data."""
    module = fake_module(job.module, mode)
    if job.mode == "infer":
        module.eval().requires_grad_(False)
    elif not module.training:
        module.train()
    step = StepModule(job, module)
    return step, (fake_tree(job.args, mode), fake_tree(dict(job.kwargs), mode), fake_tree(job.targets, mode))
