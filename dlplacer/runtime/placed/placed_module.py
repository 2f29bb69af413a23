"""A module that runs on the planned devices, and shares parameters and buffers with its job's module."""

import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job, autocast_of, flat_inputs
from dlplacer.frontend.torch.tracing.passes import EVERY_STEP
from dlplacer.frontend.torch.tracing.step_module import (
    GLOBAL_HOOKS,
    accumulation_hooks,
    extent,
    gradient_hooks,
    set_training,
)
from dlplacer.planning.interrupt import kept_interrupts
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.backends import CudaGraphs
from dlplacer.runtime.executor.run import DeviceTimeline, StepInputs, StepState
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.placed.variant import (
    Layouts,
    Variant,
    layouts_of,
    named_like,
    order_like,
    require_autocast,
    require_data,
    require_inputs,
    require_no_own_hooks,
    require_unwritten,
    require_whole,
)
from dlplacer.runtime.program.program import Order

MOST_VARIANTS = 16
"""Most variants kept: enough for inputs padded to a few lengths, in both modes; one of 2,000 ops takes about 10 MB."""
_TENSOR_TABLES = ("_parameters", "_buffers")
_making = threading.RLock()
"""Held during a capture: Dynamo's state is global, and modules hold stand-ins meanwhile."""


class ModuleSnapshot:
    """A snapshot of modules: sub-modules with class and mode, hooks, and tensors with their traits.

    Every call of a placed module calls `holds`, so `holds` only compares prepared lists, in C. `roots`:
    prefix of names → module, such as a job's module and its loss. `tensors`: parameters and buffers by name, a tied
    tensor under each of its names. `is_first`: whether the snapshot was taken when the plan was applied.
    """

    def __init__(self, roots: Mapping[str, nn.Module], is_first: bool = False) -> None:
        self.is_first = is_first
        # Like `named_parameters`: a module appears under each of its names.
        named = [
            (_joined(prefix, path), module)
            for prefix, root in roots.items()
            for path, module in root.named_modules(remove_duplicate=False)
        ]
        self.modules = [module for _, module in named]
        self._kinds = [*map(type, self.modules)]
        self._modes = self._training()
        tables: list[Mapping[Any, Any]] = [*chain.from_iterable(map(_tables, self.modules)), *GLOBAL_HOOKS]
        # Most tables hold hooks, a dozen per module, and are empty: `any` checks that at once.
        self._empty = [table for table in tables if not table]
        self._live = [table for table in tables if table]
        self._copies = [dict(table) for table in self._live]
        self._tensor_tables = [vars(module)[table] for module in self.modules for table in _TENSOR_TABLES]
        self._tensor_names = [*chain.from_iterable(self._tensor_tables)]
        places = ((path, name) for path, module in named for table in _TENSOR_TABLES for name in vars(module)[table])
        self._full_names = [_joined(path, name) for path, name in places]
        found = self._found()
        self._adopt(found, [*map(id, found)])
        self._traits = _traits(found)
        self._ties = _ties(self._ids)

    def holds(self) -> bool:
        """True if nothing has changed since the snapshot."""
        same = not any(self._empty) and self._live == self._copies
        same = same and [*map(type, self.modules)] == self._kinds and self._training() == self._modes
        return same and self._tensors_hold()

    def _training(self) -> list[bool]:
        return [module.training for module in self.modules]

    def _tensors_hold(self) -> bool:
        if [*chain.from_iterable(self._tensor_tables)] != self._tensor_names:
            return False
        found = self._found()
        ids = [*map(id, found)]
        if _traits(found) != self._traits:
            return False
        if ids != self._ids:
            # New tensor objects alone are no edit: FSDP replaces the pieces of parameters by the gathered ones.
            if _ties(ids) != self._ties:
                return False
            self._adopt(found, ids)
        return True

    def _found(self) -> list[torch.Tensor | None]:
        return [*chain.from_iterable(map(dict.values, self._tensor_tables))]

    def _adopt(self, found: list[torch.Tensor | None], ids: list[int]) -> None:
        self._ids = ids
        pairs = zip(self._full_names, found, strict=True)
        self.tensors: dict[str, torch.Tensor] = {name: tensor for name, tensor in pairs if tensor is not None}


class Variants:
    """A cache of variants, which makes missing ones and drops the least recently used.

    `make` captures a step for the inputs of a job, in the current state of the modules, and compiles it.
    """

    def __init__(self, roots: Mapping[str, nn.Module], make: Callable[[Job, ModuleSnapshot], Variant]) -> None:
        self._roots, self._make = roots, make
        self._found: OrderedDict[tuple[ModuleSnapshot, Hashable], Variant] = OrderedDict()
        self._latest = ModuleSnapshot(roots, is_first=True)

    def state(self) -> ModuleSnapshot:
        """The snapshot that matches the modules now: a known one, or a new one."""
        with _making:
            if not self._latest.holds():
                known = dict.fromkeys(state for state, _ in reversed(self._found))
                latest = next((state for state in known if state.holds()), None)
                if latest is None:
                    latest = ModuleSnapshot(self._roots)
                    # A replaced sub-module must not stay alive only because it may return.
                    for key in [key for key in self._found if [*map(id, key[0].modules)] != [*map(id, latest.modules)]]:
                        del self._found[key]
                self._latest = latest
            return self._latest

    def add(self, job: Job, variant: Variant, state: ModuleSnapshot) -> None:
        """Add the variant for the inputs of a job in a state of the modules."""
        with _making:
            self._found[state, step_key(job)] = variant
            while len(self._found) > MOST_VARIANTS:
                self._found.popitem(last=False)

    def find(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor]]:
        """The variant for the inputs of a job, and the tensors of the modules by name.

        The first thread that asks makes a missing variant; other threads wait.
        """
        with _making:
            state = self.state()
            key = state, step_key(job)
            if key in self._found:
                self._found.move_to_end(key)
            else:
                self.add(job, self._make(job, state), state)
            return self._found[key], state.tensors

    def forget(self) -> None:
        """Drop all variants, and take a new snapshot of the modules."""
        with _making:
            self._found.clear()
            self._latest = ModuleSnapshot(self._roots)


def step_key(job: Job) -> Hashable:
    """The key of a variant: mode, shapes of input tensors, values of other inputs, and the inputs' nesting."""
    targets = job.targets if job.mode == "train" else ()
    if not job.kwargs and all(isinstance(each, torch.Tensor) for each in (*job.args, *targets)):
        return job.mode, tuple([tuple(leaf.shape) for leaf in (*job.args, *targets)]), len(targets)
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), targets))
    return job.mode, tuple(map(_described, leaves)), repr(nesting)


def _described(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape)
    # Compare types and bits, because NaN != NaN, 0.0 == -0.0, and 1 == 1.0 == True.
    return type(leaf).__name__, struct.pack("d", leaf) if isinstance(leaf, float) else leaf


def _tables(module: nn.Module) -> Iterator[Mapping[Any, Any]]:
    """The tables of a module's sub-modules and of its hooks."""
    for name, value in vars(module).items():
        if name == "_modules" or ("_hooks" in name and isinstance(value, dict)):
            yield value


def _traits(found: list[torch.Tensor | None]) -> list[object]:
    return [None if one is None else (one.shape, one.stride(), one.dtype, one.requires_grad) for one in found]


def _ties(ids: list[int]) -> list[int]:
    first: dict[int, int] = {}
    return [first.setdefault(one, position) for position, one in enumerate(ids)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def add_gradients(parameters: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
    """Add gradients to ``.grad`` of the parameters with the same names, like the autograd engine: each in memory of its
    own, in the parameter's layout, with calls of the parameter's hooks.
    """
    for name, computed in zip(gradients, apart(gradients.values()), strict=True):
        parameter, gradient = parameters[name], computed
        for hook in gradient_hooks(parameter):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        elif gradient is computed and gradient.stride() == parameter.stride():
            parameter.grad = gradient
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        for accumulated in accumulation_hooks(parameter):
            accumulated(parameter)


def apart(gradients: Collection[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The gradients, each cloned if it shares elements with an earlier one: later steps add to each in place.

    Several gradients may be views of the same memory, such as those of the two biases of an LSTM cell at batch size 1.
    The autograd engine does not detect such views.
    """
    places = [gradient.untyped_storage().data_ptr() for gradient in gradients]
    taken: dict[int, list[tuple[int, int]]] = {place: [] for place, count in Counter(places).items() if count > 1}
    for place, gradient in zip(places, gradients, strict=True):
        begin, end = extent(gradient) if place in taken else (0, 0)
        spans = taken.get(place, [])
        yield gradient if all(end <= low or high <= begin for low, high in spans) else gradient.clone()
        spans.append((begin, end))


class PlacedStep(torch.autograd.Function):
    """Autograd function of the forward and the backward program; activations stay on their devices between them."""

    @staticmethod
    def forward(ctx: Any, variant: Variant, inputs: StepInputs, *differentiated: torch.Tensor) -> torch.Tensor:
        """Run the forward program, and return the loss.

        `differentiated`: the parameters with a gradient, in the executable's order; if there are none, another tensor,
        so that the engine calls `backward`.
        """
        state = variant.stages[0].start(inputs)
        variant.stages[0].run(state)
        ctx.variant, ctx.state = variant, state
        ctx.versions, ctx.count = variant.versions(inputs), len(differentiated)
        # A copy: the state must not refer to the loss, whose history refers to the state.
        loss: torch.Tensor = variant.outputs(state)[0].clone()
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        """Run the backward program, and return the gradients of the parameters."""
        variant, state = ctx.variant, ctx.state
        if state is None:
            raise InputError("backward was called twice on one loss; the placed step keeps its activations for one")
        changed = [name for name, old in variant.versions(state.inputs).items() if old != ctx.versions[name]]
        if changed:
            raise InputError(
                f"{changed[0]!r} was changed between forward and backward, which both read it; change it after "
                "backward, as optimizers do"
            )
        # The engine keeps ctx while the loss lives; the activations must be freed earlier.
        ctx.state = None
        state.inputs = variant.with_tangent(state.inputs, tangent)
        with kept_interrupts():
            variant.stages[1].run(state)
        gradients = [*apart(variant.gradients(state).values())]
        return (None, None, *gradients, *[None] * (ctx.count - len(gradients)))


_SHARED = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")


class PlacedModule(nn.Module):
    """A job's module whose ops run on the devices and in the order of a plan.

    It shares the module's parameters and buffers under their own names, each on its planned device. So optimizers and
    checkpoints work as with the plain module. In training, a call returns the loss, and ``backward()`` runs the
    backward program; `step` runs forward and backward as one program. In evaluation mode, a call returns the module's
    outputs, with the same placement. `train` and `eval` switch the job's module too.

    A call with other shapes captures the step again, and keeps the placement by op id. So does a call after a
    sub-module was replaced, switched to another mode, frozen or given a hook. After any other change of Python state
    that the step reads, call `recapture`.

    With `records`, calls of `step` and calls in evaluation mode record the times of every op. `timelines`: device name
    in the plan → its timeline of the last recorded step. `step_seed` is the seed of the random ops of the last step.
    """

    def __init__(
        self, job: Job, plan: Plan, captured: Captured, devices: Mapping[str, RuntimeDevice], *, segments: str = "eager"
    ) -> None:
        super().__init__()
        # Not copies but the dictionaries of the job's module, so that state dicts and ``named_parameters`` are the same
        # for both.
        for name in _SHARED:
            self.__dict__[name] = job.module.__dict__[name]
        self._job = job
        self.segments = segments
        self.records = False
        self.step_seed = 0
        self.timelines: Mapping[str, DeviceTimeline] = {}
        self.plan = plan
        self.devices = dict(devices)
        self.updater = Updater(job.update)
        if job.mode == "infer" or not job.module.training:
            self.train(job.mode == "train")
        self._starts = {entry.op: entry.start_s for entry in plan.ops}
        self._primary = self._variant_in(plan.order, captured, layouts_of(flat_inputs(job)))
        roots = {"": job.module, **({"(loss)": job.loss} if isinstance(job.loss, nn.Module) else {})}
        self._variants = Variants(roots, lambda job, state: self._made(job, state))
        state = self._variants.state()
        self._variants.add(job, self._primary, state)
        self._move_tensors(self._primary, state.tensors)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set an attribute of the job's module here, because the step would not see it."""
        job = self.__dict__.get("_job")
        if job is not None and name not in self.__dict__ and name in job.module.__dict__:
            raise AttributeError(
                f"{name!r} is an attribute of the module that the job was made of; set it there, and the next step "
                "sees it"
            )
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied or saved: threads and devices belong to this process."""
        raise InputError(
            "a placed module is bound to the devices of this process and cannot be copied or saved; save its state, "
            "torch.save(placed.state_dict(), file), and the plan, and load them into dlplacer.apply(job, plan, devices)"
        )

    # The job's module has the same tensors, and may have extra state, load hooks and its own way to save.
    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._job.module._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._job.module._load_from_state_dict(*args, **kwargs)

    def __repr__(self) -> str:
        where = ", ".join(f"{name} on {device.name}" for name, device in self.devices.items())
        return f"<PlacedModule {type(self._job.module).__name__}: {len(self.plan.ops)} ops, {where}>"

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """In training, the loss for ``(*args, *targets)``; in evaluation, the outputs; with targets, the loss.

        ``loss.backward()`` adds gradients and updates no parameters; only `step` applies the job's optimizer.

        Raises
        ------
        InputError
            If the number of inputs or the names of keyword arguments differ from the job's.
        MismatchError
            If dtypes, mode or autocast differ from those of the plan.
        CaptureError
            If the step cannot be captured at these shapes or after a change of the module.
        RunError
            If an op fails; names the op, its module and its device.
        """
        with kept_interrupts():
            job = self._called_with(inputs, kwargs)
            if not self.training:
                return self._evaluate(job)
            variant, tensors, bound = self._training_step(job)
            differentiated = self._differentiated(variant, tensors)
            loss: torch.Tensor = PlacedStep.apply(variant, bound, *differentiated)  # type: ignore[no-untyped-call]
            return loss

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Run forward and backward in one program, add gradients to ``.grad``, and return the loss.

        If the job has an optimizer, the program also updates the parameters, and leaves ``.grad`` unchanged. Raises the
        errors of `forward`, and InputError if this module itself has hooks.
        """
        if not self.training:
            raise MismatchError("step() trains, but the module is in evaluation mode; call train() first")
        require_no_own_hooks(self)
        with kept_interrupts():
            variant, tensors, bound = self._training_step(self._called_with(inputs, kwargs))
            state = self._run(variant, variant.with_tangent(bound, None))
            if self._job.update is None:
                add_gradients(tensors, variant.gradients(state))
            loss: torch.Tensor = variant.outputs(state)[0]
            return loss

    def train(self, mode: bool = True) -> "PlacedModule":
        """Switch this module and the job's module to training or evaluation mode."""
        # Use the module's own `train`, which may keep parts of it in evaluation mode, or merge weights.
        set_training(self._job.module, mode)
        self.training = mode
        return self

    def recapture(self) -> None:
        """Make later calls capture their step again, after a change that a call does not detect.

        Such changes are to attributes, globals and closures that the step reads in Python, such as a dropout rate.
        """
        self._variants.forget()

    @property
    def captured(self) -> Captured:
        """The graph and executable at the shapes of the plan."""
        return self._primary.captured

    @property
    def graph_notes(self) -> tuple[str, ...]:
        """Reasons why ops of `step` or of inference are issued one by one despite ``segments="cuda_graph"``."""
        backend = self._primary.joint.backend
        return tuple(backend.notes) if isinstance(backend, CudaGraphs) else ()

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
        named = named_like(self._job.kwargs, kwargs)
        require_autocast(self._job)
        require_inputs(self._job, args, named, targets, torch.is_grad_enabled())
        return self._job.with_inputs(args, named, targets)

    def _training_step(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor], StepInputs]:
        """The variant of a step, the module's tensors, and the inputs of the step."""
        if job.mode != "train":
            raise MismatchError("the plan was made for inference; capture with mode='train' to train")
        if len(job.targets) != len(self._job.targets):
            raise InputError(
                f"training needs the {len(self._job.targets)} targets after the inputs: a step ends at the loss"
            )
        variant, tensors = self._variant(job)
        return variant, tensors, variant.bind(tensors, flat_inputs(job), self._drawn_seed(variant))

    def _differentiated(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that autograd differentiates: the parameters with a gradient."""
        return [tensors[code.name] for code in variant.captured.executable.of_role("gradient")]

    def _run(self, variant: Variant, inputs: StepInputs) -> StepState:
        """Run the step as one program; with `records`, keep its timelines."""
        state = variant.run(inputs, self.records)
        self.timelines = state.timelines or self.timelines
        return state

    def _evaluate(self, called: Job) -> Any:
        args = called.args if called.loss is not None else (*called.args, *called.targets)
        variant, tensors = self._variant(called.with_inputs(args, called.kwargs, (), infers=True))
        # A plan captured for inference has the job's targets as unread inputs.
        leaves = flat_inputs(called.with_inputs(args, called.kwargs, self._job.targets))
        state = self._run(variant, variant.bind(tensors, leaves, self._drawn_seed(variant)))
        outputs = pytree.tree_unflatten(variant.outputs(state), variant.captured.executable.output_spec)
        if not called.targets or called.loss is None:
            return outputs
        with autocast_of(called, pytree.tree_leaves(outputs)[0].device):
            return called.loss(outputs, *called.targets)

    def _drawn_seed(self, variant: Variant) -> int:
        """The seed of a step's random ops, drawn from torch's generator, so that ``manual_seed`` determines it."""
        if variant.is_random:
            self.step_seed = int(torch.randint(2**62, ()))
        return self.step_seed

    def _variant(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor]]:
        """The variant for a call, and the module's tensors."""
        variant, tensors = self._variants.find(job)
        require_unwritten(variant.written, tensors, flat_inputs(job))
        return variant, tensors

    def _made(self, job: Job, state: ModuleSnapshot) -> Variant:
        """A new variant for the inputs of a job and a state of the modules, ordered like the plan."""
        # Sharding counts as an edit, and a new capture must not see pieces of tensors.
        for name, tensor in state.tensors.items():
            require_whole(name, tensor)
        captured = self._capture(job)
        variant = self._variant_in(order_like(self.plan, captured.graph), captured, layouts_of(flat_inputs(job)))
        if not state.is_first:
            self._move_tensors(variant, state.tensors)
        return variant

    def _capture(self, job: Job) -> Captured:
        """The job captured with the plan's rewrites; in the other mode, only with rewrites that fit every step."""
        described = self.plan.graph.capture or {}
        rewrites = [name for name in described["rewrites"] if job.mode == self._job.mode or name in EVERY_STEP]
        return capture_job(job, rewrites, bool(described.get("colocate_backward")))

    def _variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """The variant of a captured step in an order."""
        return Variant(
            captured, order, self.devices, self.updater, layouts, segments=self.segments, starts=self._starts
        )

    def _move_tensors(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> None:
        """Move parameters and buffers to their devices in a variant; InputError if one has no data."""
        for code in variant.captured.executable.of_role("parameter", "buffer"):
            tensor = tensors[code.name]
            require_data(code.name, tensor)
            # Assign .data, so that optimizers keep the same Parameter object.
            tensor.data = tensor.data.to(self.devices[variant.home[code.op]].torch_device)
