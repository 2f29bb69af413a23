"""Rewrites of the traced ATen graph before it becomes a dataflow graph. A graph records their names for apply."""

import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import behind_views, is_check, picked_output
from dlplacer.frontend.torch.refusals import require_fixed_shapes
from dlplacer.frontend.torch.splitting.rewrite import is_split, parse_splits, split_ops
from dlplacer.frontend.torch.tracing.autocast_lists import CUDA_AUTOCAST
from dlplacer.frontend.torch.tracing.fused_lstm import FUSED_LSTM
from dlplacer.frontend.torch.tracing.gradient_sums import join_gradients, stack_gradients
from dlplacer.frontend.torch.tracing.joint import Traced
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of, is_micro_batch_rewrite

aten = torch.ops.aten


def drop_detach(graph: fx.Graph) -> None:
    """Let readers of a detached tensor read the tensor itself: the step's gradients are explicit by now."""
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def split_convolution_backward(graph: fx.Graph) -> None:
    """Make a convolution's input gradient one op and its weight and bias gradients another.

    The weight gradient leaves the critical path that way; together they cost what the whole op costs. The backward of a
    matrix product is two products in ATen already.
    """
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        mask = node.args[-1]
        # The first convolution of a model needs no input gradient, a frozen one no weight gradient: one op already.
        if not mask[0] or not (mask[1] or mask[2]):
            continue
        parts = {"input": [True, False, False], "weight": [False, mask[1], mask[2]]}
        for suffix, part_mask in parts.items():
            _split_off(graph, node, suffix, part_mask)
        for getitem in list(node.users):
            graph.erase_node(getitem)
        graph.erase_node(node)


def _split_off(graph: fx.Graph, node: fx.Node, suffix: str, mask: Sequence[bool]) -> None:
    with graph.inserting_before(node):
        part = graph.create_node(
            "call_function", node.target, (*node.args[:-1], list(mask)), dict(node.kwargs), f"{node.name}_{suffix}"
        )
    part.meta = dict(node.meta)
    part.meta["val"] = tuple(value if wanted else None for value, wanted in zip(node.meta["val"], mask, strict=True))
    for getitem in [user for user in node.users if mask[picked_output(user)]]:
        output = picked_output(getitem)
        with graph.inserting_before(getitem):
            picked = graph.create_node("call_function", operator.getitem, (part, output), name=f"{part.name}_{output}")
        picked.meta = dict(getitem.meta)
        getitem.replace_all_uses_with(picked)


def copy_given_gradients(traced: Traced) -> None:
    """Let gradients that are parameters, buffers or inputs of the step, or views of them, be copies of these.

    A function of the user's may return what it saved as a gradient. It becomes ``.grad``, to which later steps add in
    place.
    """
    graph = traced.module.graph
    output = graph.output_node()
    placeholders = {traced.inputs[node.name].name: node for node in graph.find_nodes(op="placeholder")}
    entries = list(output.args[0])  # type: ignore[arg-type]
    for position, (entry, slot) in enumerate(zip(entries, traced.output_slots, strict=True)):
        if slot is None or slot.role != "gradient" or not isinstance(entry, fx.Node):
            continue
        source = behind_views(entry)
        is_input = source.op == "placeholder" and traced.inputs[source.name].role != "tangent"
        if is_input or source.op == "get_attr":
            with graph.inserting_before(output):
                entries[position] = copied = graph.call_function(aten.clone.default, (entry,))
            copied.meta = {"partitioner_tag": "is_backward", "val": placeholders[slot.name].meta["val"]}
    output.args = (tuple(entries),)


PASSES: dict[str, Callable[[fx.Graph], None]] = {
    "drop-detach": drop_detach,
    "split-convolution-backward": split_convolution_backward,
    "join-gradients": join_gradients,
    "stack-gradients": stack_gradients,
}
"""Name → pass, in the order in which they are applied."""

EVERY_STEP = (*PASSES, FUSED_LSTM, CUDA_AUTOCAST)
"""Rewrites that fit a step in either mode and of any shape."""


def require_known(names: Sequence[str]) -> None:
    """Refuse names that are not of a pass, of a split or of micro-batches."""
    unknown = [
        name for name in names if name not in EVERY_STEP and not is_split(name) and not is_micro_batch_rewrite(name)
    ]
    if unknown:
        raise CaptureError(
            f"rewrite {unknown[0]!r} is not known; this version has {', '.join(EVERY_STEP)}, split:OP:AXIS:PARTS "
            "and micro-batches:M"
        )
    parse_splits(names)
    batch_cut_of(names)


def apply_passes(graph: fx.Graph, names: Sequence[str]) -> None:
    """Apply the named passes, then all splits together, and drop checks and unread nodes."""
    for node in list(graph.nodes):
        if is_check(node) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    require_fixed_shapes(graph)
    for name in names:
        if name in PASSES:
            PASSES[name](graph)
    if splits := parse_splits(names):
        split_ops(graph, splits)
    graph.eliminate_dead_code()
    graph.lint()
