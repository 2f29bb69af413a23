"""Custom derivatives of plain PyTorch, which Dynamo's graph does not hold.

The adapter to Dynamo's private handling of autograd.Function; known to work with torch 2.11 to 2.13.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.refusals import line_of, place_in_code

_WRONGLY_DECOMPOSED = ("multilabel_margin_loss",)


@contextlib.contextmanager
def own_derivatives_kept() -> Iterator[None]:
    """Watch Dynamo trace a step, and refuse at its end a transform of torch.func that met a user's autograd.Function.

    The graph would lose the derivative that it defines (pytorch#193279).
    """
    from torch._dynamo.variables.misc import AutogradFunctionVariable

    apply, met = AutogradFunctionVariable.call_apply, list[str]()

    def watched(function: Any, tracer: Any, *arguments: Any, **more: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            met.append(f"{function.fn_cls.__qualname__}{place_in_code(tracer.f_code.co_filename, tracer.lineno)}")
        return apply(function, tracer, *arguments, **more)

    with patch.object(AutogradFunctionVariable, "call_apply", watched):
        yield
    if met:
        raise CaptureError(
            f"torch.func transforms {met[0]}, and a captured graph would lose the derivative that it defines; use "
            "torch.autograd.grad(..., create_graph=True) in place of torch.func"
        )


def require_right_derivatives(captured: fx.GraphModule) -> None:
    """Refuse calls, naming their line, that a graph would train or compute otherwise than plain PyTorch."""
    for node in captured.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name == "tag_activation_checkpoint" and node.kwargs.get("use_reentrant") and not _reads_gradients(node):
            raise CaptureError(
                f"checkpoint(use_reentrant=True) is given no tensor that requires a gradient{line_of(node)}, so that "
                "plain PyTorch trains nothing inside; use use_reentrant=False"
            )
        if name in _WRONGLY_DECOMPOSED:
            raise CaptureError(
                f"torch traces {name}{line_of(node)} as ops that compute another value than its kernel; write it in "
                "other functions, or move it out of the module"
            )


def _reads_gradients(node: fx.Node) -> bool:
    """True if an argument requires a gradient, besides the parameters that are read inside."""
    values = [read.meta.get("example_value") for read in node.all_input_nodes if read.op.startswith("call_")]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
