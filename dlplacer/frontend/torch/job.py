"""A job to plan: a module with its inputs, targets, loss and mode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.core.expect import brief, expect, refuse
from dlplacer.core.record import Number, OneOf, Record, record

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph
    from dlplacer.data_parallel.groups.captured_chain import ParameterUses

OPTIMIZERS = ("sgd", "momentum", "adam")
_Rate = Annotated[float, Number()]


@record(frozen=True, repr=False)
class Optimizer(Record):
    """An update rule that becomes part of the step: the same arithmetic as torch.optim's SGD and Adam.

    `kind`: ``sgd``: no state; ``momentum``: one state tensor per parameter; ``adam``: two.
    """

    kind: Annotated[str, OneOf(OPTIMIZERS)]
    lr: _Rate = 0.01
    momentum: _Rate = 0.9
    betas: tuple[_Rate, _Rate] = (0.9, 0.999)
    eps: _Rate = 1e-8
    weight_decay: _Rate = 0.0

    @property
    def states(self) -> int:
        """State tensors per parameter."""
        return OPTIMIZERS.index(self.kind)


@dataclass(frozen=True, repr=False)
class Job:
    """A step to plan and run.

    >>> import dlplacer as dp, torch
    >>> dp.Job(torch.nn.Linear(12, 3), args=(torch.randn(8, 12),), mode="infer")
    <Job Linear: infer, args float32[8, 12]>

    - `module`: has real tensors, or is built on the meta device or under a fake tensor mode: capture needs no data.
    - `args`, `kwargs`: inputs of the module; tensors may be nested in tuples, lists and dicts.
    - `targets`: further arguments of the loss.
    - `loss`: ``loss(output, *targets)`` → scalar. None in mode ``train`` means that the module takes the targets as
      further arguments and returns the loss, or an object with an attribute or key ``loss``.
    - `mode`: ``train``: forward and backward; ``infer``: only forward, in evaluation mode.
    - `optimizer`: if given, the step also updates the parameters.
    - `autocast`: dtype name for torch.autocast around the forward pass, or None.
    - `autocast_on`: ``cpu`` or ``cuda``, whose lists decide the casts; None means this machine's device type.
    - `entry`: ``module:callable`` that builds the job, if it was named on the command line.
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    targets: tuple[Any, ...] = ()
    loss: Callable[..., Any] | None = None
    mode: str = "train"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer | str | None = None
    autocast: str | None = None
    autocast_on: str | None = None
    entry: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise InputError(f"job: module is a {type(self.module).__name__}; give a torch.nn.Module")
        if self.loss is not None and not callable(self.loss):
            raise refuse("job", "loss", self.loss, "a function or None")
        expect("job", "kwargs", self.kwargs, Mapping, "a dict")
        expect("job", "optimizer", self.optimizer, (Optimizer, str, type(None)), "dp.Optimizer, its kind, or None")
        expect("job", "entry", self.entry, (str, type(None)), "a text or None")
        for name in ("args", "targets"):
            if not isinstance(getattr(self, name), tuple):
                raise InputError(f"job: {name} is a {type(getattr(self, name)).__name__}; give a tuple: ({name[:-1]},)")
        if self.mode not in ("train", "infer"):
            raise InputError(f"job: mode is {self.mode!r}; use 'train' or 'infer'")
        for name, accepted in (("autocast", ("bfloat16", "float16")), ("autocast_on", ("cpu", "cuda"))):
            if getattr(self, name) not in (None, *accepted):
                raise InputError(f"job: {name} is {getattr(self, name)!r}; use one of {', '.join(accepted)}")
        if self.mode == "infer" and self.optimizer is not None:
            raise InputError("job: an optimizer needs mode 'train'; inference updates nothing")
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", Optimizer(self.optimizer))

    def __repr__(self) -> str:
        leaves = [
            f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if torch.is_tensor(leaf) else brief(leaf)
            for leaf in pytree.tree_leaves((self.args, dict(self.kwargs)))
        ]
        args = f", args {', '.join(leaves[:6])}{', …' * (len(leaves) > 6)}" if leaves else ""
        return f"<Job {type(self.module).__name__}: {self.mode}{args}>"

    def with_inputs(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: tuple[Any, ...], *, infers: bool = False
    ) -> "Job":
        """The job with other inputs, in mode ``infer`` if `infers`; the constructor's checks are not repeated."""
        made = object.__new__(type(self))
        given = {"args": args, "kwargs": kwargs, "targets": targets}
        vars(made).update(vars(self) | given | ({"mode": "infer", "optimizer": None} if infers else {}))
        return made

    @property
    def update(self) -> Optimizer | None:
        """The optimizer; None if the step updates no parameters."""
        return self.optimizer if isinstance(self.optimizer, Optimizer) else None

    def capture(self) -> "OpGraph":
        """The dataflow graph of the step: `dlplacer.capture` of this job."""
        from dlplacer.frontend.torch.capture import capture

        return capture(self)

    def parameter_uses(self) -> "ParameterUses":
        """The modules that use each parameter in a training step, and the order in which gradients are complete."""
        from dlplacer.frontend.torch.tracing.parameter_uses import parameter_uses

        return parameter_uses(self)


def loss_in(output: Any) -> Any:
    """The loss that a module returned: the output's ``loss`` if it has one, as in transformers; else the output."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    return output if isinstance(output, (torch.Tensor, tuple)) else getattr(output, "loss", output)


def loss_of(job: Job, module: Any = None, loss: Any = None) -> Any:
    """The loss of a job's step in plain PyTorch; `module` and `loss`, if given, replace the job's own."""
    called = job.module if module is None else module
    if job.loss is None:
        return loss_in(called(*job.args, *job.targets, **job.kwargs))
    return (job.loss if loss is None else loss)(called(*job.args, **job.kwargs), *job.targets)


def autocast_of(job: Job, device: torch.device) -> torch.autocast:
    """The autocast context for a job's module and loss on a device."""
    return torch.autocast(
        device.type, dtype=getattr(torch, job.autocast or "bfloat16"), enabled=job.autocast is not None
    )


def flat_inputs(job: Job) -> list[Any]:
    """The inputs of a job's step as a flat list: leaves of its arguments, keyword arguments and targets."""
    return pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
