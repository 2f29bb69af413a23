"""Why a job cannot be captured, in words for its author: the line, module, tensor or input, and the way out."""

import linecache
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from dlplacer.core.errors import CaptureError, first_line
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.nodes import depends_on_values, is_check, is_folded
from dlplacer.frontend.torch.tracing.step_module import (
    GLOBAL_BACKWARD_HOOKS,
    accumulation_hooks,
    gradient_hooks,
    has_backward_hooks,
)

_TORCHS_MODULES = Path(torch.__file__).parent / "nn" / "modules"
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent)
_LINE_SHOWN = 100
_REASONS = (
    r"raised exception (.+)",
    r"got (\w*(?:Error|Exception)\(.+\))",
    r"Explanation: (\S.+)",
    r"debug context: (\S.+)",
)
_BY_VALUES = "values must not decide control flow or shapes: use torch.where, or move that line out of the module"
_BY_CODE = "if the module runs with these inputs in plain PyTorch, move what cannot be traced out of it"
_PLAIN_VALUES = (bool, int, float, str)


def explanation(error: Exception) -> str:
    """The reason for a failed trace, with the last line of the user's code that was traced."""
    text = str(error).strip()
    unknown = re.search(r"Found <class '([^']+)'> in output, which is not a known type", text)
    if unknown:
        return (
            f"the model cannot be captured: it returns a {unknown[1]}, which is no nest of tensors; return tensors in "
            "tuples, lists, dicts or registered types (a cache of transformers is left out with use_cache=False)"
        )
    if "mutating a non-functional tensor" in text or "to have an entirely functional graph" in text:
        return (
            "the step changes a tensor in place that is not registered in the module, and a placed step would not; "
            "make it a buffer: self.register_buffer(name, tensor)"
        )
    if isinstance(error, ZeroDivisionError):
        return "torch divides by the size of a tensor without elements while it traces the step; skip empty batches"
    if "had requires_grad_() called" in text:
        return (
            "the step calls requires_grad_() on a tensor that it computes, which a graph cannot hold; take the "
            "derivative by torch.func.grad(function)(tensor), or of a tensor that requires a gradient already"
        )
    frames = [(frame.filename, frame.lineno, frame.line or "") for frame in getattr(error, "real_stack", None) or ()]
    by_values = any(sign in text.lower() for sign in ("data-dependent", "tolist()", "depends on input tensor data"))
    return f"the model cannot be captured{_at(frames)}: {_reason(error, text)}; {_BY_VALUES if by_values else _BY_CODE}"


def require_fixed_shapes(graph: fx.Graph) -> None:
    """Refuse a graph in which values decide the shape of a result; names the line of the first call."""
    for node in graph.nodes:
        is_work = node.op == "call_function" and not is_folded(node) and not is_check(node)
        if is_work and "val" in node.meta and depends_on_values(node.meta["val"]):
            op = f"op {node.name!r} ({node.target})"
            raise CaptureError(f"{op} needs the values of its inputs{line_of(node)}; {_BY_VALUES}")


def line_of(node: fx.Node) -> str:
    """The line of the user's code that makes a traced value or reads it first, as the end of a phrase."""
    around = (node, *node.all_input_nodes, *node.users)
    return _at(next(filter(None, map(frames_of, around)), ()))


def frames_of(node: fx.Node) -> Sequence[Any]:
    """File, line and text of the calls in which a value was traced, the innermost last."""
    return re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', node.meta.get("stack_trace") or "")


def place_in_code(file: str, line: int) -> str:
    """A line of the user's code as the end of a phrase."""
    return _at([(file, line, linecache.getline(file, line).strip())])


def _reason(error: Exception, text: str) -> str:
    if isinstance(error, SyntaxError):
        return "the step computes no tensor"
    if "Could not guard on data-dependent" in text and (caused := re.search(r"Caused by: .* in (\w+)\)", text)):
        return f"the values of a tensor decide what {caused[1]} does"
    if "Could not extract specialized integer" in text:
        return "Python code needs a number that only the values of a tensor tell"
    for form in _REASONS:
        found = re.search(form, text)
        if found and "no exception handler" not in found[1]:
            return found[1].strip().rstrip(".")
    return first_line(error).rstrip(".")


def _at(frames: Sequence[Any]) -> str:
    """The last line of the user's code; where torch's own modules alone were traced, the last line of those."""
    mine = [frame for frame in frames if not any(Path(frame[0]).is_relative_to(root) for root in _NOT_THE_USERS)]
    found = mine or [frame for frame in frames if Path(frame[0]).is_relative_to(_TORCHS_MODULES)]
    if not found:
        return ""
    file, line, text = found[-1]
    return f" at {file}:{line} ({textwrap.shorten(text, _LINE_SHOWN, placeholder=' …')})"


def require_traceable(job: Job, input_names: Sequence[str]) -> None:
    """Refuse modules, tensors and inputs that cannot be traced; `input_names` has a name for each flat input."""
    leaves = flat_inputs(job)
    for name, leaf in zip(input_names, leaves, strict=True):
        _require_input(name, leaf)
    named: Mapping[str, torch.Tensor] = {**dict(job.module.named_parameters()), **dict(job.module.named_buffers())}
    for name, tensor in named.items():
        if is_lazy(tensor):
            raise CaptureError(f"{name!r} has no shape yet; call the module once with its inputs, then capture it")
        _require_plain(repr(name), tensor)
        if job.update is not None and (gradient_hooks(tensor) or accumulation_hooks(tensor)):
            raise CaptureError(
                f"{name!r} has a hook, which an update inside the step does not call; capture without an optimizer and "
                "step one of torch.optim"
            )
    trains = job.mode == "train"
    for registered, hooks in GLOBAL_BACKWARD_HOOKS.items():
        if trains and hooks:
            raise CaptureError(
                f"torch.nn.modules.module.{registered} has registered a hook for every module, which the engine would "
                "call; remove it (handle.remove()), or hook the parameters"
            )
    for path, module in job.module.named_modules():
        reason = _mistake(module, trains=trains and (module.training or not job.module.training))
        if reason is not None:
            where = f"module {path!r}" if path else "the module"
            raise CaptureError(f"{where} ({type(module).__name__}) {reason}")


def _require_input(name: str, leaf: Any) -> None:
    if isinstance(leaf, torch.Tensor):
        _require_plain(f"input {name}", leaf)
    elif leaf is not None and not isinstance(leaf, _PLAIN_VALUES):
        kind = type(leaf)
        raise CaptureError(
            f"input {name} is a {kind.__module__}.{kind.__qualname__}; give tensors, numbers, texts and None, nested "
            "in tuples, lists, dicts or types known to torch.export.register_dataclass, or make it part of the module"
        )


def _require_plain(what: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise CaptureError(f"{what} is a tensor of layout {kind}, which no plan places; give a dense (padded) tensor")
    if tensor.is_quantized:
        raise CaptureError(f"{what} is quantized, which no plan can place; give a tensor of numbers: .dequantize()")
    if not isinstance(tensor, FakeTensor) and any(_of_its_own(type(tensor), name) for name in _DISPATCHERS):
        raise CaptureError(
            f"{what} is a {type(tensor).__qualname__}, whose own handling of ops no plan calls; give a plain tensor: "
            ".as_subclass(torch.Tensor), or .full_tensor() of one that is distributed"
        )


_DISPATCHERS = ("__torch_function__", "__torch_dispatch__")


def _of_its_own(kind: type, name: str) -> bool:
    """True if a type of tensors intercepts ops otherwise than tensors and parameters do."""
    method, plain = (getattr(getattr(of, name), "__func__", getattr(of, name)) for of in (kind, torch.Tensor))
    return method is not plain and method is not getattr(nn.Parameter, name)


def _mistake(module: nn.Module, trains: bool) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by TorchScript, which cannot be traced; give the module that it was made of"
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
        return "is quantized: its weights are packed for one kernel; plan the module that it was made of"
    if has_backward_hooks(module):
        return "has a backward hook, which the engine would call; remove it (handle.remove()), or hook its parameters"
    if isinstance(module, _BatchNorm) and trains and module.momentum is None and module.track_running_stats:
        return "has momentum=None: the weight of the mean hangs on the value of a counter; give momentum a number"
    return None
