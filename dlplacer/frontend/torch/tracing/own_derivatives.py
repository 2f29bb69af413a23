"""Derivatives that plain PyTorch takes in a way of its own, which Dynamo's graph does not hold."""

from collections.abc import Iterator
from types import CodeType

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.capture_failure import frames_of, line_of


def require_own_derivatives(captured: fx.GraphModule) -> None:
    """Return if no transform of torch.func takes the derivative of a user's autograd.Function (pytorch#193279).

    Nor may a reentrant checkpoint be given only tensors without a gradient, for then it trains nothing.

    Raises
    ------
    CaptureError
        Naming the line.
    """
    depth = 0
    for node in captured.graph.nodes:
        name = getattr(node.target, "__name__", "")
        depth += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        owner = _function_of(node) if depth else None
        if name == "tag_activation_checkpoint" and node.kwargs.get("use_reentrant") and not _reads_gradients(node):
            raise CaptureError(
                f"checkpoint(use_reentrant=True) is given no tensor that requires a gradient{line_of(node)}, so that "
                "plain PyTorch trains nothing inside; use use_reentrant=False"
            )
        if owner is not None:
            raise CaptureError(
                f"torch.func transforms {owner.__qualname__}{line_of(node)}, and a captured graph would lose the "
                "derivative that it defines; use torch.autograd.grad(..., create_graph=True) in place of torch.func"
            )


def _reads_gradients(node: fx.Node) -> bool:
    """Whether an argument requires a gradient, besides the parameters that are read inside."""
    values = [read.meta.get("example_value") for read in node.all_input_nodes if read.op.startswith("call_")]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def _function_of(node: fx.Node) -> type | None:
    """The autograd.Function in whose forward a traced call is."""
    frames = [(file, int(line)) for file, line, _ in frames_of(node)]
    for owner in _subclasses(torch.autograd.Function) if frames else ():
        code = getattr(getattr(owner, "forward", None), "__code__", None)
        if isinstance(code, CodeType):
            lines = {line for _, _, line in code.co_lines() if line}
            if any(file == code.co_filename and line in lines for file, line in frames):
                return owner
    return None


def _subclasses(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)
