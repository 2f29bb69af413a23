"""A module that runs on the planned devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.frontend.capture import Captured, capture_job
from dlplacer.frontend.job import Job
from dlplacer.devices.base import Device
from dlplacer.errors import InputError, MismatchError
from dlplacer.plan import Plan
from dlplacer.runtime.autograd import PlacedStep
from dlplacer.runtime.guards import require_autocast, require_dtypes
from dlplacer.runtime.match import order_at_other_shapes, order_of_inference
from dlplacer.runtime.update import Updater
from dlplacer.runtime.variant import Variant


class PlacedModule(nn.Module):
    """A job's module whose ops run where and in the order that a plan says.

    It shares the module's parameters and buffers under their own names, each on its planned device, so optimizers and
    checkpoints work as with the plain module. In training, calling it returns the loss and ``backward()`` runs the
    backward program; `step` runs forward and backward as one program. In evaluation mode it returns what the module
    returns, on the same placement.

    Attributes
    ----------
    seed
        With the step number and the op's id it decides what random ops draw, whatever the placement.
    """

    def __init__(self, job: Job, plan: Plan, captured: Captured, devices: Mapping[str, Device]) -> None:
        super().__init__()
        self.__dict__["_modules"] = job.module._modules
        self.__dict__["_parameters"] = job.module._parameters
        self.__dict__["_buffers"] = job.module._buffers
        self.__dict__["_job"] = job
        self.seed = 0
        self.plan = plan
        self.devices = dict(devices)
        self.updater = Updater(job.update)
        self.steps_done = 0
        self.training = job.mode == "train"
        self._variants: dict[Any, Variant] = {}
        self._primary = Variant(captured, plan.order, self.devices, self.updater)
        leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets if self.training else ()))
        self._variants[self._key(leaves)] = self._primary
        self._move_parameters()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """In training the loss of ``(*args, *targets)``; in evaluation mode the outputs of ``(*args)``, or their loss.

        Raises
        ------
        MismatchError
            If dtypes, mode or autocast are not those that the plan was made for.
        RunError
            If an op fails; names the op, its module and its device.
        """
        args, targets = self._split(inputs)
        if not self.training:
            outputs = self._evaluate(args, kwargs)
            return self._job.loss(outputs, *targets) if targets and self._job.loss is not None else outputs
        self._require_targets(targets)
        leaves = pytree.tree_leaves((args, kwargs, targets))
        variant = self._variant(args, kwargs, targets, leaves)
        bound = variant.bind(self._tensors(), leaves, self.seed, self._count_step())
        named = dict(self.named_parameters(remove_duplicate=False))
        with_gradient = [named[code.name] for code in variant.captured.executable.of_role("gradient")]
        return PlacedStep.apply(variant, bound, *with_gradient)

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Forward and backward in one program; gradients are added to ``.grad``, and the loss is returned.

        If the job has an optimizer, the program also updates the parameters, and ``.grad`` stays as it is.
        """
        args, targets = self._split(inputs)
        if not self.training:
            raise MismatchError("step() trains, but the module is in evaluation mode; call train() first")
        self._require_targets(targets)
        leaves = pytree.tree_leaves((args, kwargs, targets))
        variant = self._variant(args, kwargs, targets, leaves)
        bound = variant.bind(self._tensors(), leaves, self.seed, self._count_step())
        state = variant.joint.start(variant.with_tangent(bound, None))
        variant.joint.run(state)
        if self._job.update is None:
            self._add_gradients(variant.gradients(state))
        return variant.outputs(state)[0]

    @property
    def captured(self) -> Captured:
        """The graph and executable at the shapes of the plan."""
        return self._primary.captured

    def close(self) -> None:
        """End the devices' threads; the module cannot run afterwards."""
        for device in self.devices.values():
            device.close()

    def _split(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        count, extra = len(self._job.args), len(self._job.targets)
        if len(inputs) not in (count, count + extra):
            raise InputError(f"the step takes {count} inputs and {extra} targets; {len(inputs)} values were given")
        return tuple(inputs[:count]), tuple(inputs[count:])

    def _require_targets(self, targets: Sequence[Any]) -> None:
        if self._job.mode != "train":
            raise MismatchError("the plan was made for inference; capture with mode='train' to train")
        if len(targets) != len(self._job.targets):
            raise InputError(f"training needs the {len(self._job.targets)} targets behind the inputs: the step is the loss")

    def _evaluate(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves = pytree.tree_leaves((args, dict(kwargs)))
        variant = self._variant(args, kwargs, (), leaves)
        state = variant.joint.start(variant.bind(self._tensors(), leaves, self.seed, self._count_step()))
        variant.joint.run(state)
        return pytree.tree_unflatten(variant.outputs(state), variant.captured.executable.output_spec)

    def _variant(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...], leaves: Sequence[Any]
    ) -> Variant:
        require_autocast(self._job)
        require_dtypes(self._job, leaves)
        key = self._key(leaves)
        if key not in self._variants:
            mode = "train" if self.training else "infer"
            optimizer = self._job.optimizer if self.training else None
            job = replace(self._job, args=args, kwargs=kwargs, targets=targets, mode=mode, optimizer=optimizer)
            described = self.plan.graph.capture or {}
            captured = capture_job(job, described["rewrites"], bool(described.get("colocate_backward")))
            same_mode = mode == self._job.mode
            order = (order_at_other_shapes if same_mode else order_of_inference)(self.plan, captured.graph)
            self._variants[key] = Variant(captured, order, self.devices, self.updater)
        return self._variants[key]

    def _key(self, leaves: Sequence[Any]) -> Any:
        shapes = tuple(tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        return shapes, self.training, tuple(module.training for module in self.modules())

    def _tensors(self) -> dict[str, torch.Tensor]:
        parameters = dict(self.named_parameters(remove_duplicate=False))
        return {**parameters, **dict(self.named_buffers(remove_duplicate=False))}

    def _count_step(self) -> int:
        self.steps_done += 1
        return self.steps_done

    def _move_parameters(self) -> None:
        tensors = self._tensors()
        for code in self._primary.captured.executable.codes.values():
            if code.role in ("parameter", "buffer"):
                tensor = tensors[code.name]
                tensor.data = tensor.data.to(self.devices[self._primary.home[code.op]].torch_device)

    def _add_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        named = dict(self.named_parameters(remove_duplicate=False))
        for name, gradient in gradients.items():
            parameter = named[name]
            if parameter.grad is not None:
                parameter.grad.add_(gradient)
            elif gradient.stride() == parameter.stride():
                parameter.grad = gradient
            else:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
