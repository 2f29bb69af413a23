"""Reasons why a job cannot be captured, for its author: line, module, tensor or input, and the way out."""

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
from dlplacer.frontend.torch.nodes import is_check, is_folded
from dlplacer.frontend.torch.tracing.step_module import (
    GLOBAL_BACKWARD_HOOKS,
    accumulation_hooks,
    gradient_hooks,
    has_backward_hooks,
)

_TORCHS_MODULES = Path(torch.__file__).parent / "nn" / "modules"
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent)
_REASONS = (
    r"raised exception (.+)",
    r"got (\w*(?:Error|Exception)\(.+\))",
    r"Explanation: (\S.+)",
    r"debug context: (\S.+)",
)
"""Patterns of the reason in torch's messages; the first match counts."""
_UNREGISTERED = (
    "the step changes a tensor in place that is not registered in the module, and a placed step would not; make it a "
    "buffer: self.register_buffer(name, tensor)"
)
_TOLD = {
    "mutating a non-functional tensor": _UNREGISTERED,
    "to have an entirely functional graph": _UNREGISTERED,
    "had requires_grad_() called": "the step calls requires_grad_() on a tensor that it computes, which a graph cannot "
    "hold; take the derivative by torch.func.grad(function)(tensor), or of a tensor that requires a gradient already",
}
_BY_VALUES = "values must not decide control flow or shapes: use torch.where, or move that line out of the module"
_BY_CODE = "if the module runs with these inputs in plain PyTorch, move what cannot be traced out of it"


def explanation(error: Exception) -> str:
    """The reason for a failed trace, with the last traced line of user code."""
    text = str(error).strip()
    unknown = re.search(r"Found <class '([^']+)'> in output, which is not a known type", text)
    if unknown:
        return (
            f"the model cannot be captured: it returns a {unknown[1]}, which is not made of tensors; return tensors in "
            "tuples, lists, dicts or registered types (a cache of transformers is left out with use_cache=False)"
        )
    if isinstance(error, ZeroDivisionError):
        return "torch divides by the size of a tensor without elements while it traces the step; skip empty batches"
    for sign, told in _TOLD.items():
        if sign in text:
            return told
    frames = [(frame.filename, frame.lineno, frame.line or "") for frame in getattr(error, "real_stack", None) or ()]
    by_values = any(sign in text.lower() for sign in ("data-dependent", "tolist()", "depends on input tensor data"))
    reasons = (found[1] for form in _REASONS if (found := re.search(form, text)))
    reason = next((each for each in reasons if "no exception handler" not in each), first_line(error))
    if isinstance(error, SyntaxError):
        reason = "the step computes no tensor"
    elif "Could not guard on data-dependent" in text and (caused := re.search(r"Caused by: .* in (\w+)\)", text)):
        reason = f"the values of a tensor decide what {caused[1]} does"
    elif "Could not extract specialized integer" in text:
        reason = "Python code needs a number that depends on the values of a tensor"
    way = _BY_VALUES if by_values else _BY_CODE
    return f"the model cannot be captured{place_in_code(frames)}: {reason.strip().rstrip('.')}; {way}"


def require_fixed_shapes(graph: fx.Graph) -> None:
    """Refuse a graph in which values decide the shape of a result; names the line of the first call."""
    for node in graph.nodes:
        if node.op != "call_function" or is_folded(node) or is_check(node) or "val" not in node.meta:
            continue
        value = node.meta["val"]
        tensors = [each for each in (value if isinstance(value, (tuple, list)) else (value,)) if torch.is_tensor(each)]
        if not tensors or any(not isinstance(size, int) for tensor in tensors for size in tensor.shape):
            op = f"op {node.name!r} ({node.target})"
            raise CaptureError(f"{op} needs the values of its inputs{line_of(node)}; {_BY_VALUES}")


def line_of(node: fx.Node) -> str:
    """The line of user code that makes a traced value or first reads it, as `place_in_code` writes it."""
    around = (node, *node.all_input_nodes, *node.users)
    return place_in_code(next(filter(None, map(frames_of, around)), ()))


def frames_of(node: fx.Node) -> Sequence[Any]:
    """File, line and text of the calls that led to a traced value, the innermost last."""
    return re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', node.meta.get("stack_trace") or "")


def place_in_code(frames: Sequence[Any]) -> str:
    """The last frame in user code, else in torch's modules, as " at FILE:LINE (TEXT)"; "" if there is none."""
    mine = [frame for frame in frames if not any(Path(frame[0]).is_relative_to(root) for root in _NOT_THE_USERS)]
    found = mine or [frame for frame in frames if Path(frame[0]).is_relative_to(_TORCHS_MODULES)]
    if not found:
        return ""
    file, line, text = found[-1]
    return f" at {file}:{line} ({textwrap.shorten(text, 100, placeholder=' …')})"


def require_traceable(job: Job, input_names: Sequence[str]) -> None:
    """Refuse modules, tensors and inputs that cannot be traced; `input_names` has a name for each flat input."""
    for name, leaf in zip(input_names, flat_inputs(job), strict=True):
        if isinstance(leaf, torch.Tensor):
            _require_plain(f"input {name}", leaf)
        elif leaf is not None and not isinstance(leaf, (bool, int, float, str)):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise CaptureError(
                f"input {name} is a {kind}; give tensors, numbers, texts and None, nested in tuples, lists, dicts or "
                "types known to torch.export.register_dataclass, or make it part of the module"
            )
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
        reason = ""
        averages = isinstance(module, _BatchNorm) and module.momentum is None and module.track_running_stats
        if isinstance(module, torch.jit.ScriptModule):
            reason = "is compiled by TorchScript, which cannot be traced; give the module that it was made of"
        elif type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            reason = "is quantized: its weights are packed for one kernel; plan the module that it was made of"
        elif has_backward_hooks(module):
            reason = "has a backward hook, which the engine calls; remove it (handle.remove()), or hook its parameters"
        elif averages and trains and (module.training or not job.module.training):
            reason = "has momentum=None: the weight of the mean depends on a counter's value; give momentum a number"
        if reason:
            where = f"module {path!r}" if path else "the module"
            raise CaptureError(f"{where} ({type(module).__name__}) {reason}")


def _require_plain(what: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise CaptureError(f"{what} is a tensor of layout {kind}, which no plan places; give a dense (padded) tensor")
    if tensor.is_quantized:
        raise CaptureError(f"{what} is quantized, which no plan can place; give a tensor of numbers: .dequantize()")
    own = False
    for name in ("__torch_function__", "__torch_dispatch__") if not isinstance(tensor, FakeTensor) else ():
        method, plain = (
            getattr(getattr(of, name), "__func__", getattr(of, name)) for of in (type(tensor), torch.Tensor)
        )
        # The type intercepts ops in another way than tensors and parameters do.
        own |= method is not plain and method is not getattr(nn.Parameter, name)
    if own:
        raise CaptureError(
            f"{what} is a {type(tensor).__qualname__}, whose own handling of ops no plan calls; give a plain tensor: "
            ".as_subclass(torch.Tensor), or .full_tensor() of one that is distributed"
        )
