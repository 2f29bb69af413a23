"""A module that runs on the planned devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job, autocast_of
from dlplacer.frontend.torch.tracing.passes import PASSES
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.compile_program import StepInputs
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.autograd import PlacedStep
from dlplacer.runtime.placed.gradients import add_gradients
from dlplacer.runtime.placed.guards import in_order, require_autocast, require_data, require_inputs
from dlplacer.runtime.placed.match import order_at_other_shapes, order_of_inference
from dlplacer.runtime.placed.variant import Layouts, Variant, layouts_of
from dlplacer.runtime.program.lower import Order

_SHARED = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")


class PlacedModule(nn.Module):
    """A job's module whose ops run where and in the order that a plan says.

    It shares the module's parameters and buffers under their own names, each on its planned device, so optimizers and
    checkpoints work as with the plain module. In training, calling it returns the loss and ``backward()`` runs the
    backward program; `step` runs forward and backward as one program. In evaluation mode it returns what the module
    returns, on the same placement. `train` and `eval` switch the job's module too.

    Attributes
    ----------
    seed
        With the number of the training step and the op's id it decides what random ops draw, whatever the placement.
    records
        Whether calls of `step` and calls in evaluation mode record when every op ran.
    timelines
        Device name in the plan → what the last recorded step took there.
    """

    def __init__(self, job: Job, plan: Plan, captured: Captured, devices: Mapping[str, RuntimeDevice]) -> None:
        super().__init__()
        # The very dictionaries of the job's module, not copies: state dicts, hooks and ``named_parameters`` are its
        # own.
        for name in _SHARED:
            self.__dict__[name] = job.module.__dict__[name]
        self._job = job
        self.seed = 0
        self.records = False
        self.timelines: Mapping[str, DeviceTimeline] = {}
        self.plan = plan
        self.devices = dict(devices)
        self.updater = Updater(job.update)
        self.steps_done = 0
        if job.mode == "infer" or not job.module.training:
            self.train(job.mode == "train")
        self._variants: dict[Any, Variant] = {}
        leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
        self._primary = self._variant_of(captured, plan.order, layouts_of(leaves))
        self._variants[self._key(job)] = self._primary
        self._move_tensors()

    def __repr__(self) -> str:
        where = ", ".join(f"{name} on {device.name}" for name, device in self.devices.items())
        return f"<PlacedModule {type(self._job.module).__name__}: {len(self.plan.ops)} ops, {where}>"

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """In training the loss of ``(*args, *targets)``; in evaluation mode the outputs of ``(*args)``, or their loss.

        ``loss.backward()`` leaves gradients and updates nothing, even if the job has an optimizer: that is for `step`.

        Raises
        ------
        InputError
            If the number of inputs or the names of keyword arguments are not those of the job.
        MismatchError
            If dtypes, mode or autocast are not those that the plan was made for.
        RunError
            If an op fails; names the op, its module and its device.
        """
        job = self._called_with(inputs, kwargs)
        if not self.training:
            return self._evaluate(job)
        tensors = job_tensors(self._job)
        variant, bound = self._training_step(job, tensors)
        with_gradient = [tensors[code.name] for code in variant.captured.executable.of_role("gradient")]
        loss: torch.Tensor = PlacedStep.apply(variant, bound, *with_gradient)  # type: ignore[no-untyped-call]
        return loss

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Forward and backward in one program; gradients are added to ``.grad``, and the loss is returned.

        If the job has an optimizer, the program also updates the parameters, and ``.grad`` stays as it is. Raises what
        `forward` raises.
        """
        if not self.training:
            raise MismatchError("step() trains, but the module is in evaluation mode; call train() first")
        tensors = job_tensors(self._job)
        variant, bound = self._training_step(self._called_with(inputs, kwargs), tensors)
        state = self._run(variant, variant.with_tangent(bound, None))
        if self._job.update is None:
            add_gradients(tensors, variant.gradients(state))
        loss: torch.Tensor = variant.outputs(state)[0]
        return loss

    def train(self, mode: bool = True) -> "PlacedModule":
        """Switch this module and the job's module to training or evaluation mode."""
        self._job.module.training = mode
        return super().train(mode)

    @property
    def captured(self) -> Captured:
        """The graph and executable at the shapes of the plan."""
        return self._primary.captured

    def close(self) -> None:
        """End the devices' threads; the module cannot run afterwards."""
        for device in self.devices.values():
            device.close()

    def _called_with(self, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        """The job with the inputs of a call."""
        count, extra = len(self._job.args), len(self._job.targets)
        if len(inputs) not in (count, count + extra):
            raise InputError(f"the step takes {count} inputs and {extra} targets; {len(inputs)} values were given")
        args, targets = tuple(inputs[:count]), tuple(inputs[count:])
        named = in_order(self._job.kwargs, kwargs)
        require_autocast(self._job)
        require_inputs(self._job, args, named, targets, self.training and torch.is_grad_enabled())
        return replace(self._job, args=args, kwargs=named, targets=targets)

    def _training_step(self, job: Job, tensors: Mapping[str, torch.Tensor]) -> tuple[Variant, StepInputs]:
        if job.mode != "train":
            raise MismatchError("the plan was made for inference; capture with mode='train' to train")
        if len(job.targets) != len(self._job.targets):
            raise InputError(
                f"training needs the {len(self._job.targets)} targets after the inputs: a step ends at the loss"
            )
        variant = self._variant(job)
        self.steps_done += 1
        leaves = pytree.tree_leaves((job.args, job.kwargs, job.targets))
        return variant, variant.bind(tensors, leaves, self.seed, self.steps_done)

    def _run(self, variant: Variant, inputs: StepInputs) -> StepState:
        """The step as one program, recorded if wanted."""
        state = variant.joint.start(inputs, self.records)
        variant.joint.run(state)
        if state.timeline is not None:
            self.timelines = state.timeline
        return state

    def _evaluate(self, called: Job) -> Any:
        args = called.args if called.loss is not None else (*called.args, *called.targets)
        variant = self._variant(replace(called, args=args, targets=(), mode="infer", optimizer=None))
        # A plan captured in inference has the job's targets as inputs that nothing reads.
        leaves = pytree.tree_leaves((args, called.kwargs, self._job.targets))
        state = self._run(variant, variant.bind(job_tensors(self._job), leaves, self.seed, self.steps_done))
        outputs = pytree.tree_unflatten(variant.outputs(state), variant.captured.executable.output_spec)
        if not called.targets or called.loss is None:
            return outputs
        with autocast_of(called, pytree.tree_leaves(outputs)[0].device):
            return called.loss(outputs, *called.targets)

    def _variant(self, job: Job) -> Variant:
        key = self._key(job)
        if key not in self._variants:
            captured = self._capture(job)
            same_mode = job.mode == self._job.mode
            order = (order_at_other_shapes if same_mode else order_of_inference)(self.plan, captured.graph)
            leaves = pytree.tree_leaves((job.args, job.kwargs, job.targets))
            self._variants[key] = self._variant_of(captured, order, layouts_of(leaves))
        return self._variants[key]

    def _capture(self, job: Job) -> Captured:
        """The job's graph with the plan's rewrites; in the other mode with those that are for every step."""
        described = self.plan.graph.capture or {}
        same_mode = job.mode == self._job.mode
        rewrites = [name for name in described["rewrites"] if same_mode or name in PASSES]
        return capture_job(job, rewrites, bool(described.get("colocate_backward")))

    def _variant_of(self, captured: Captured, order: Order, layouts: Layouts) -> Variant:
        return Variant(captured, order, self.devices, self.updater, layouts)

    def _key(self, job: Job) -> Any:
        """What decides the traced graph: shapes, other values and nesting of the inputs, and every module's mode."""
        leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets if job.mode == "train" else ()))
        shapes = tuple(
            tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else (type(leaf).__name__, leaf) for leaf in leaves
        )
        return job.mode, shapes, repr(nesting), tuple(module.training for module in self.modules())

    def _move_tensors(self) -> None:
        tensors = job_tensors(self._job)
        for code in self._primary.captured.executable.of_role("parameter", "buffer"):
            tensor = tensors[code.name]
            require_data(code.name, tensor)
            # Through .data, so that optimizers which hold the Parameter keep holding the same object.
            tensor.data = tensor.data.to(self.devices[self._primary.home[code.op]].torch_device)
