"""Why a model cannot be captured, in words for its author: the line, the reason and the way out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import first_line

_TORCHS_MODULES = Path(torch.__file__).parent / "nn" / "modules"
_NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parent)
_REASONS = (
    r"raised exception (.+)",
    r"got (\w*(?:Error|Exception)\(.+\))",
    r"Explanation: (\S.+)",
    r"debug context: (\S.+)",
)
_BY_VALUES = "values must not decide control flow or shapes: use torch.where, or move that line out of the module"
_BY_CODE = "if the module runs with these inputs in plain PyTorch, move what cannot be traced out of it"


def explanation(error: Exception) -> str:
    """What went wrong while tracing, with the last line of the user's code that was traced."""
    text = str(error).strip()
    unknown = re.search(r"Found <class '([^']+)'> in output, which is not a known type", text)
    if unknown:
        return (
            f"the model cannot be captured: it returns a {unknown[1]}, which is no nest of tensors; return tensors in "
            "tuples, lists, dicts or registered types (a cache of transformers is left out with use_cache=False)"
        )
    if "mutating a non-functional tensor" in text:
        return (
            "the step changes a tensor in place that is not registered in the module, and a placed step would not; "
            "make it a buffer: self.register_buffer(name, tensor)"
        )
    frames = [(frame.filename, frame.lineno, frame.line or "") for frame in getattr(error, "real_stack", None) or ()]
    by_values = any(sign in text.lower() for sign in ("data-dependent", "tolist()", "depends on input tensor data"))
    return f"the model cannot be captured{_at(frames)}: {_reason(error, text)}; {_BY_VALUES if by_values else _BY_CODE}"


def depends_on_values(node: fx.Node) -> str:
    """What is wrong with a traced call whose result has no shape before it runs."""
    return f"op {node.name!r} ({node.target}) needs the values of its inputs{line_of(node)}; {_BY_VALUES}"


def line_of(node: fx.Node) -> str:
    """Where the user's code makes a traced value or reads it first, as the end of a phrase."""
    around = (node, *node.all_input_nodes, *node.users)
    trace = next(filter(None, (near.meta.get("stack_trace") for near in around)), "")
    return _at(re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', trace))


def _reason(error: Exception, text: str) -> str:
    if isinstance(error, SyntaxError):
        return "the step computes no tensor"
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
    return f" at {found[-1][0]}:{found[-1][1]} ({found[-1][2].strip()})" if found else ""
