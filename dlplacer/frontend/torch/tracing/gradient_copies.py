"""Gradients that nothing computes: a function of the user's may return what it saved as the gradient of a parameter."""

from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.nodes import behind_views
from dlplacer.frontend.torch.tracing.joint import Traced

_GIVEN = ("parameter", "buffer", "input")


def copy_given_gradients(traced: Traced) -> None:
    """Let gradients that are parameters, buffers or inputs of the step, or views of them, be copies of these.

    They become ``.grad``, to which later steps add in place.
    """
    graph = traced.module.graph
    output = graph.output_node()
    slots = [(node, traced.inputs[node.name]) for node in graph.find_nodes(op="placeholder")]
    parameters = {slot.name: node.meta["val"] for node, slot in slots if slot.role == "parameter"}
    entries = list(output.args[0])  # type: ignore[arg-type]
    for position, (entry, slot) in enumerate(zip(entries, traced.output_slots, strict=True)):
        if slot is not None and slot.role == "gradient" and _is_given(entry, traced):
            with graph.inserting_before(output):
                entries[position] = copied = graph.call_function(torch.ops.aten.clone.default, (entry,))
            copied.meta["partitioner_tag"] = "is_backward"
            copied.meta["val"] = parameters[slot.name]
    output.args = (tuple(entries),)


def _is_given(entry: Any, traced: Traced) -> bool:
    if not isinstance(entry, fx.Node):
        return False
    source = behind_views(entry)
    return source.op == "get_attr" or (source.op == "placeholder" and traced.inputs[source.name].role in _GIVEN)
