"""One step on stand-ins under the real autograd engine: when gradients are finished, and which calls use parameters."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError
from dlplacer.data_parallel.groups.captured_chain import ParameterUses
from dlplacer.frontend.torch.capture_failure import explanation
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.quiet import undisturbed
from dlplacer.frontend.torch.tracing.step_module import StepModule, fake_step, named_tensors

_DESCRIBE = ("__get__", "size", "stride", "dim", "ndimension", "numel", "is_floating_point", "is_contiguous")
"""What asks a tensor for its description: sharded parameters answer that too."""


def parameter_uses(job: Job) -> ParameterUses:
    """The uses of a module's parameters in its training step, found without allocating tensors.

    The autograd engine is torch's own, and it orders its work by the graph alone, so the order of the gradients is that
    of a real step.

    Raises
    ------
    CaptureError
        If the job does not train, or its step cannot run on tensors without data.
    """
    if job.mode != "train":
        raise CaptureError("a job of mode 'infer' has no gradients; use mode='train'")
    with undisturbed(), fake_step(job, FakeTensorMode(allow_non_fake_inputs=True)) as (step, inputs):
        names: dict[int, str] = {}
        for name, tensor in named_tensors(step.module):
            names.setdefault(id(tensor), name)
        ready: list[str] = []
        for parameter in step.module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda done: ready.append(names[id(done)])
                )
        calls = _Calls(step.module)
        try:
            with calls.watched(), _Reads(names, calls):
                (loss,) = step(*inputs)
            loss.backward()
        except Exception as error:
            raise CaptureError(explanation(error)) from error
        return _uses(step, names, ready, calls)


def _uses(step: StepModule, names: dict[int, str], ready: list[str], calls: "_Calls") -> ParameterUses:
    trained = [names[id(parameter)] for parameter in step.module.parameters() if parameter.requires_grad]
    holders = {}
    for parameter in step.module.parameters():
        name = names[id(parameter)]
        holder = calls.holder(name, parameter)
        if holder is not None:
            holders[name] = holder
    held = set(holders.values())
    # A parameter finished twice, as under nested backward passes, counts when it is finished for good.
    order = tuple(reversed(dict.fromkeys(reversed(ready))))
    unused = tuple(name for name in trained if name not in set(order))
    return ParameterUses(order, unused, holders, tuple(path for path in dict.fromkeys(calls.order) if path in held))


class _Calls:
    """The calls of a module's submodules during one forward pass."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = dict(module.named_modules())
        self.open: list[str] = []
        self.order: list[str] = []
        self._readers: dict[str, list[str]] = {}

    def read(self, name: str) -> None:
        """Record that the module called at this moment uses a parameter."""
        inside = list(self.open)
        if name in self._readers:
            inside = [path for path in self._readers[name] if path in inside]
        self._readers[name] = inside

    def holder(self, name: str, parameter: nn.Parameter) -> str | None:
        """The innermost module that owns the parameter and within whose one call all its uses are."""
        often = Counter(self.order)
        if name not in self._readers:
            return ""
        for path in reversed(self._readers[name]):
            if often[path] == 1 and any(own is parameter for own in self.modules[path].parameters()):
                return path
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this is open, every call is noted."""
        with ExitStack() as stack:
            for path, module in self.modules.items():
                stack.callback(module.register_forward_pre_hook(self._entry(path)).remove)
                stack.callback(module.register_forward_hook(self._exit, always_call=True).remove)
            yield

    def _entry(self, path: str) -> Callable[[nn.Module, Any], None]:
        def entered(_module: nn.Module, _args: Any) -> None:
            self.open.append(path)
            self.order.append(path)

        return entered

    def _exit(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.open.pop()


class _Reads(TorchFunctionMode):
    """Tells which parameters every torch function is called with."""

    def __init__(self, names: dict[int, str], calls: _Calls) -> None:
        super().__init__()
        self.names, self.calls = names, calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the parameters among the arguments, and call the function."""
        if getattr(func, "__name__", "") not in _DESCRIBE:
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor) and id(leaf) in self.names:
                    self.calls.read(self.names[id(leaf)])
        return func(*args, **(kwargs or {}))
