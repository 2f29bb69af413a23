"""Tensors that a step reaches otherwise than through its modules: closures, globals, objects, plain lists."""

from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.capture_failure import line_of
from dlplacer.frontend.torch.tracing.step_module import StepModule


def read_registered_tensors(captured: fx.GraphModule, step: StepModule, args: tuple[Any, ...]) -> None:
    """Let a graph that Dynamo captured read the parameters and buffers of the job by name, however it reaches them.

    Dynamo makes an input of every tensor that the step reaches. Those that are registered become one value each with
    what the modules themselves read, so that gradients arrive and changes are seen; the others are constants.

    Raises
    ------
    CaptureError
        Naming the line that reads a tensor which requires a gradient and is not registered.
    """
    flatten: Any = captured._dynamo_bytecode_flatten
    for node, value in zip(captured.graph.find_nodes(op="placeholder"), flatten(*args), strict=True):
        name = step.registered.get(id(value))
        if name is not None:
            with captured.graph.inserting_before(node):
                read = captured.graph.get_attr(name)
            read.meta = dict(node.meta)
            node.replace_all_uses_with(read)
        elif step.trains and isinstance(value, torch.Tensor) and value.requires_grad and _is_outside(value, step):
            kind = f"{'Parameter' if isinstance(value, torch.nn.Parameter) else 'tensor'} of shape {list(value.shape)}"
            raise CaptureError(
                f"the step reads a {kind} that requires a gradient and is not registered in the module"
                f"{line_of(node)}; assign it to an attribute of the module, or read its .detach()"
            )
    captured.recompile()


def _is_outside(tensor: torch.Tensor, step: StepModule) -> bool:
    return all(tensor is not own for own in step.parameters())
