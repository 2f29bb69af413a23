"""Plain PyTorch, the baseline: the job's own module, loss and backward, without any plan."""

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job, autocast_of, loss_in
from dlplacer.machines.importers.host import usable_cores
from dlplacer.runtime.devices.base import RuntimeDevice


class EagerStep:
    """One step of a job in plain PyTorch on one torch device.

    Parameters
    ----------
    module
        A copy of the job's module, so that both keep their own gradients and statistics.
    """

    def __init__(self, job: Job, module: nn.Module, device: torch.device) -> None:
        self._job = job
        self.module = module.to(device)
        if job.mode == "infer" or not module.training:
            self.module.train(job.mode == "train")
        self._loss = copy.deepcopy(job.loss).to(device) if isinstance(job.loss, nn.Module) else job.loss
        self._args = _moved(job.args, device)
        self._kwargs = _moved(dict(job.kwargs), device)
        self._targets = _moved(job.targets, device)
        self._device = device
        self._optimizer = _torch_optimizer(job, self.module)

    def __call__(self) -> torch.Tensor:
        """The loss when training, else the first output tensor; gradients are left in ``.grad``."""
        self.module.zero_grad(set_to_none=True)
        if self._job.mode == "infer":
            with torch.no_grad(), autocast_of(self._job, self._device):
                return _first_tensor(self.module(*self._args, **self._kwargs))
        with autocast_of(self._job, self._device):
            if self._loss is None:
                loss = loss_in(self.module(*self._args, *self._targets, **self._kwargs))
            else:
                loss = self._loss(self.module(*self._args, **self._kwargs), *self._targets)
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached


def _torch_optimizer(job: Job, module: nn.Module) -> torch.optim.Optimizer | None:
    rule = job.update
    if rule is None:
        return None
    if rule.kind == "adam":
        return torch.optim.Adam(
            module.parameters(), lr=rule.lr, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay
        )
    momentum = rule.momentum if rule.kind == "momentum" else 0.0
    return torch.optim.SGD(module.parameters(), lr=rule.lr, momentum=momentum, weight_decay=rule.weight_decay)


def _moved(value: Any, device: torch.device) -> Any:
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


def _first_tensor(value: Any) -> torch.Tensor:
    from torch.utils import _pytree as pytree

    return next(leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


@dataclass(frozen=True)
class EagerOnDevice:
    """Plain PyTorch on one of the devices."""

    eager: EagerStep
    device: RuntimeDevice

    def step(self, context: AbstractContextManager[object] | None = None) -> torch.Tensor:
        """A step on the device's thread, in a context if one is given."""

        def step() -> torch.Tensor:
            with context or nullcontext():
                loss = self.eager()
            self.device.synchronize()
            return loss

        result: torch.Tensor = self.device.submit(step).result()
        return result

    def step_on_all_cores(self) -> torch.Tensor:
        """A step with as many threads as this process has cores."""
        before = torch.get_num_threads()
        torch.set_num_threads(len(usable_cores()))
        try:
            return self.eager()
        finally:
            torch.set_num_threads(before)
