"""Tensors that a step reaches otherwise than through its modules: closures, globals, objects, plain lists."""

import re
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import writes_in_python
from dlplacer.frontend.torch.refusals import line_of
from dlplacer.frontend.torch.tracing.step_module import StepModule, named_tensors


def read_registered_tensors(captured: fx.GraphModule, step: StepModule, args: tuple[Any, ...]) -> None:
    """Let a graph that Dynamo captured read the parameters and buffers of the job by name, however it reaches them.

    Dynamo makes an input of every tensor that the step reaches. Those that are registered become one value each with
    what the modules themselves read, so that gradients arrive and changes are seen; the others are constants. Refused
    are numbers that Python draws, and tensors outside the modules that the step would train or changes in place.
    """
    flatten: Any = captured._dynamo_bytecode_flatten
    read = dict(zip(captured.graph.find_nodes(op="placeholder"), flatten(*args), strict=True))
    paths = {path for name, _ in named_tensors(step) for path in _inputs_named(name)}
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


def _inputs_named(name: str) -> list[str]:
    """Dynamo's names for the input that is a module's own tensor."""
    *modules, leaf = re.sub(r"[^\w.]", "_", name).split(".")
    owner = "L_self_" + "".join(f"modules_{module}_" for module in modules)
    return [f"{owner}parameters_{leaf}_", f"{owner}buffers_{leaf}_"]


def _trained(loss: torch.Tensor) -> set[Any]:
    """Ids of the leaves that a loss has gradients for, and the autograd functions on the way to them."""
    functions, found = [loss.grad_fn], set[Any]()
    while functions:
        function = functions.pop()
        if function is not None and function not in found:
            found |= {function, id(getattr(function, "variable", None))}
            functions += [earlier for earlier, _ in function.next_functions]
    return found
