"""Why a model cannot be captured, in words for its author: the line, the reason and the way out."""

import linecache
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError, first_line
from dlplacer.frontend.torch.nodes import depends_on_values, is_check, is_folded

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
    """Return if the results of all traced calls have shapes that no values decide.

    Raises
    ------
    CaptureError
        Naming the line of the first that has not.
    """
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
