"""Tensors that Dynamo's graph lacks, as code reaches them otherwise than through modules; custom derivatives."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import writes_in_python
from dlplacer.frontend.torch.refusals import line_of, place_in_code
from dlplacer.frontend.torch.tracing.step_module import StepModule, named_tensors


def read_registered_tensors(captured: fx.GraphModule, step: StepModule, args: tuple[Any, ...]) -> None:
    """Let a graph that Dynamo captured read the parameters and buffers of the job by name, however it reaches them.

    Dynamo makes an input of every tensor that the step reaches. Those that are registered become one value each with
    what the modules themselves read, so that gradients arrive and changes are seen; the others are constants. Refused
    are numbers that Python draws, and tensors outside the modules that the step would train or changes in place.
    """
    flatten: Any = captured._dynamo_bytecode_flatten
    read = dict(zip(captured.graph.find_nodes(op="placeholder"), flatten(*args), strict=True))
    # Dynamo's names for the inputs that are modules' own tensors.
    paths = set[str]()
    for full, _ in named_tensors(step):
        *modules, leaf = re.sub(r"[^\w.]", "_", full).split(".")
        owner = "L_self_" + "".join(f"modules_{module}_" for module in modules)
        paths |= {f"{owner}parameters_{leaf}_", f"{owner}buffers_{leaf}_"}
    # A tied tensor keeps the name by which the modules read it.
    own = {step.registered.get(id(value)): node for node, value in read.items() if node.target in paths}
    outside = {}
    for node, value in read.items():
        name = step.registered.get(id(value))
        if node.name.startswith("random_value"):
            raise CaptureError(
                f"Python's random module draws a number in every step{line_of(node)}, and a placed step would keep "
                "one; draw it outside and give it as an input, or use torch.rand"
            )
        if name is not None and own.get(name) is not node:
            if name not in own:
                with captured.graph.inserting_before(node):
                    own[name] = captured.graph.get_attr(name)
                own[name].meta = dict(node.meta)
            node.replace_all_uses_with(own[name])
        elif name is None and isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
            _require_unwritten(node)
        if name is None and step.trains and isinstance(value, torch.Tensor) and value.requires_grad:
            outside[node] = value
    captured.recompile()
    if outside:
        with captured.meta["fake_mode"]:
            trained = _trained(captured(*args)[0])
    for node, value in outside.items():
        if id(value) in trained or value.grad_fn in trained:
            kind = f"{'parameter' if isinstance(value, torch.nn.Parameter) else 'tensor'} of shape {list(value.shape)}"
            raise CaptureError(
                f"the step would train a {kind} that is not registered in the module{line_of(node)}; assign it to an "
                "attribute of the module, or read its .detach()"
            )


def _require_unwritten(node: fx.Node) -> None:
    for user in node.users:
        if writes_in_python(user) and user.args and user.args[0] is node:
            raise CaptureError(
                f"the step changes a tensor in place{line_of(user)} that is not registered in the module, and a placed "
                "step would not; make it a buffer: self.register_buffer(name, tensor)"
            )


def _trained(loss: torch.Tensor) -> set[Any]:
    """Ids of the leaves that a loss has gradients for, and the autograd functions on the way to them."""
    functions, found = [loss.grad_fn], set[Any]()
    while functions:
        function = functions.pop()
        if function is not None and function not in found:
            found |= {function, id(getattr(function, "variable", None))}
            functions += [earlier for earlier, _ in function.next_functions]
    return found


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
