"""Find the order of gradients and the calls that use parameters, by a step on stand-ins in the real autograd engine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError
from dlplacer.data_parallel.groups.captured_chain import ParameterUses
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.refusals import explanation
from dlplacer.frontend.torch.tracing.stand_in import undisturbed
from dlplacer.frontend.torch.tracing.step_module import fake_step, named_tensors

_DESCRIBE = ("__get__", "size", "stride", "dim", "ndimension", "numel", "is_floating_point", "is_contiguous")
"""Functions that only query a tensor's metadata, which sharded parameters also support."""


def parameter_uses(job: Job) -> ParameterUses:
    """The uses of the parameters in a job's training step, found without allocating tensors.

    Torch's autograd engine orders its work by the graph alone, so gradients are complete in the order of a real step.
    """
    if job.mode != "train":
        raise CaptureError("a job of mode 'infer' has no gradients; use mode='train'")
    with undisturbed(), fake_step(job) as (step, inputs):
        watch, ready = _Watch(step.module), list[str]()
        parameters = {watch.names[id(parameter)]: parameter for parameter in step.module.parameters()}
        trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        for name in trained:
            parameters[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda done: ready.append(watch.names[id(done)])
            )
        try:
            with watch.calls(), watch:
                (loss,) = step(*inputs)
            loss.backward()
        except Exception as error:
            raise CaptureError(explanation(error)) from error
        found = ((name, watch.holder(name, parameter)) for name, parameter in parameters.items())
        holders = {name: holder for name, holder in found if holder is not None}
    # If a gradient is accumulated twice, for example in nested backward passes, its last time counts.
    order = tuple(reversed(dict.fromkeys(reversed(ready))))
    unused = tuple(name for name in trained if name not in order)
    calls = tuple(path for path in dict.fromkeys(watch.order) if path in holders.values())
    return ParameterUses(order, unused, holders, calls)


class _Watch(TorchFunctionMode):
    """Records the calls of a module's submodules, and the parameters that each torch function in them reads."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.modules = dict(module.named_modules())
        self.names = {id(tensor): name for name, tensor in reversed([*named_tensors(module)])}
        self.open: list[str] = []
        self.order: list[str] = []
        self.readers: dict[str, list[str]] = {}

    def holder(self, name: str, parameter: nn.Parameter) -> str | None:
        """The innermost module that is called once, owns the parameter and has all its uses, or None; "" if unused."""
        if name not in self.readers:
            return ""
        for path in reversed(self.readers[name]):
            if self.order.count(path) == 1 and any(own is parameter for own in self.modules[path].parameters()):
                return path
        return None

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Record every module call within the context."""
        with ExitStack() as stack:
            for path, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(partial(self._enter, path)).remove)
                stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
            yield

    def _enter(self, path: str, *_given: Any) -> None:
        self.open.append(path)
        self.order.append(path)

    def _leave(self, *_given: Any) -> None:
        self.open.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _DESCRIBE:
            for leaf in pytree.tree_leaves((args, kwargs)):
                name = self.names.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
                if name is not None:
                    self.readers[name] = [path for path in self.readers.get(name, self.open) if path in self.open]
        return func(*args, **(kwargs or {}))
