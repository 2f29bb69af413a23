"""Plain PyTorch, the baseline: the job's own module, loss and backward, without any plan."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.job import Job, autocast_of, loss_in
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.runtime.devices.base import RuntimeDevice


class EagerStep:
    """One step of a job in plain PyTorch on one of the devices, with a copy of the job's module.

    `parts` are the job; or several jobs of the same model, of whose losses and gradients the step takes the mean. If
    `compiled`, ``torch.compile`` compiles the module in the first step.
    """

    def __init__(
        self, parts: Sequence[Job], module: nn.Module, device: RuntimeDevice, *, compiled: bool = False
    ) -> None:
        job = parts[0]
        here = device.torch_device
        self.module = module.to(here)
        if job.mode == "infer" or not module.training:
            self.module.train(job.mode == "train")
        self._called: Any = torch.compile(self.module) if compiled else self.module
        self._loss = copy.deepcopy(job.loss).to(here) if isinstance(job.loss, nn.Module) else job.loss
        self._parts = [_moved(part, here) for part in parts]
        self._device = device
        self._optimizer = _torch_optimizer(job, self.module)

    def step(self, draws: Sequence[AbstractContextManager[object]] = ()) -> tuple[torch.Tensor, ...]:
        """A step on the device's thread: the loss when training, else the tensors that the module returns.

        Gradients are left in ``.grad``. `draws`: [part] → context in which it runs, if any.
        """

        def step() -> tuple[torch.Tensor, ...]:
            results = self._step(draws)
            self._device.synchronize()
            return results

        return self._device.submit(step).result()

    def step_on_all_cores(self) -> tuple[torch.Tensor, ...]:
        """A step with as many threads as this process has cores."""
        before = torch.get_num_threads()
        torch.set_num_threads(len(usable_cores()))
        try:
            return self._step(())
        finally:
            torch.set_num_threads(before)

    def _step(self, draws: Sequence[AbstractContextManager[object]]) -> tuple[torch.Tensor, ...]:
        self.module.zero_grad(set_to_none=True)
        results = []
        for part, context in zip(self._parts, draws or [nullcontext()] * len(self._parts), strict=True):
            with context:
                results.append(self._pass(part))
        if len(results) > 1:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(len(results))
        if self._optimizer is not None:
            self._optimizer.step()
        return results[0] if len(results) == 1 else (torch.stack([loss for (loss,) in results]).mean(),)

    def _pass(self, job: Job) -> tuple[torch.Tensor, ...]:
        if job.mode == "infer":
            with torch.no_grad(), autocast_of(job, self._device.torch_device):
                return tensors_in(self._called(*job.args, **job.kwargs))
        with autocast_of(job, self._device.torch_device):
            if self._loss is None:
                loss = loss_in(self._called(*job.args, *job.targets, **job.kwargs))
            else:
                loss = self._loss(self._called(*job.args, **job.kwargs), *job.targets)
        loss.backward()
        return (loss.detach(),)


def _torch_optimizer(job: Job, module: nn.Module) -> torch.optim.Optimizer | None:
    rule = job.update
    if rule is None:
        return None
    common: dict[str, Any] = {"params": module.parameters(), "lr": rule.lr, "weight_decay": rule.weight_decay}
    if rule.kind == "adam":
        return torch.optim.Adam(betas=rule.betas, eps=rule.eps, **common)
    return torch.optim.SGD(momentum=rule.momentum if rule.kind == "momentum" else 0.0, **common)


def _moved(job: Job, device: torch.device) -> Job:
    given = job.args, dict(job.kwargs), job.targets
    args, kwargs, targets = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), given)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


def tensors_in(value: Any) -> tuple[torch.Tensor, ...]:
    """The tensors among what a module returns, which may hold numbers, texts and None beside them."""
    return tuple(leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
