"""A traced micro-batch → the whole step: a copy of it for each micro-batch, with gradients accumulated."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import behind_views
from dlplacer.frontend.torch.splitting.pattern import argument
from dlplacer.frontend.torch.splitting.pieces import ORIGIN, stand_in
from dlplacer.frontend.torch.tracing.joint import Slot, Traced
from dlplacer.frontend.torch.tracing.stand_in import fake_tensor
from dlplacer.planning.pipeline.micro_batch_names import copy_id

aten = torch.ops.aten
_SUM_REDUCTION = 2
_BACKWARD = {"partitioner_tag": "is_backward"}


def in_micro_batches(traced: Traced, inputs: Sequence[Any], count: int) -> Traced:
    """The step of a whole batch, made of so many copies of the traced step of one micro-batch.

    Every copy reads its slice of the inputs and the same parameters; a buffer that a copy changes is read changed by
    the next, so that batch norm sees one micro-batch after another. The loss is the mean of the copies' losses, every
    backward pass starts from the loss's gradient ÷ count, and a parameter's gradient is the sum over the copies: what
    torch.distributed.pipelining computes with ``scale_grads``, and what the whole batch gives where the loss is a mean
    over equal shares of the batch.

    Parameters
    ----------
    inputs
        The flat inputs of the whole batch.

    Raises
    ------
    CaptureError
        If the loss is a sum over samples, of which the mean over micro-batches would be another loss.
    """
    _require_mean(traced)
    return _Copies(traced, inputs, count).joined()


class _Copies:
    """Builds the graph of all copies: what they share first, then copy after copy, then what joins them.

    Attributes
    ----------
    shared
        Placeholder or constant → its node in the new graph.
    newest
        Name of a buffer → its value after the copies made so far.
    """

    def __init__(self, traced: Traced, inputs: Sequence[Any], count: int) -> None:
        self.traced, self.count = traced, count
        self.graph = fx.Graph()
        self.shared: dict[fx.Node, fx.Node] = {}
        self.newest: dict[str, fx.Node] = {}
        for node in traced.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.shared[node] = self.graph.node_copy(node)
        for node, slot in _slots(self.traced, "input"):
            if _is_tensor(node):
                self.shared[node].meta["val"] = fake_tensor(inputs[slot.position], node.meta["val"].fake_mode)
        for node, _ in _slots(self.traced, "tangent"):
            self.shared[node] = self._call(aten.div.Tensor, (self.shared[node], count), f"{node.name}_share", _BACKWARD)

    def joined(self) -> Traced:
        """All copies, their losses averaged and their gradients added."""
        copies = [self._copy(number) for number in range(self.count)]
        returned = self.traced.module.graph.output_node()
        entries = returned.args[0]
        assert isinstance(entries, (tuple, list))
        outputs = [
            entry if slot is None or not isinstance(entry, fx.Node) else self._joined(entry, slot, copies)
            for entry, slot in zip(entries, self.traced.output_slots, strict=True)
        ]
        self.graph.output(outputs).meta = dict(returned.meta)
        self.graph.lint()
        return replace(self.traced, module=fx.GraphModule(self.traced.module, self.graph))

    def _copy(self, number: int) -> dict[fx.Node, fx.Node]:
        """Node of the micro-batch → node of this copy of it."""
        made = dict(self.shared)
        for node, _ in _slots(self.traced, "input"):
            if node.users and _is_tensor(node):
                size = node.meta["val"].shape[0]
                where = (self.shared[node], 0, number * size, (number + 1) * size)
                made[node] = self._call(aten.slice.Tensor, where, copy_id(node.name, number), {})
        for node, slot in _slots(self.traced, "buffer"):
            made[node] = self.newest.get(slot.name, made[node])
        for node in self.traced.module.graph.nodes:
            if node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
                copied = self.graph.create_node(node.op, node.target, args, kwargs, copy_id(node.name, number))
                copied.meta = {ORIGIN: node.name, **node.meta}
                made[node] = copied
        for entry, slot in self.traced.outputs:
            if slot.role == "mutation":
                self.newest[slot.name] = made[entry]
        return made

    def _joined(self, entry: fx.Node, slot: Slot, copies: Sequence[dict[fx.Node, fx.Node]]) -> fx.Node:
        if slot.role == "mutation":
            return self.newest[slot.name]
        total = copies[0][entry]
        for number, made in enumerate(copies[1:], 1):
            total = self._call(aten.add.Tensor, (total, made[entry]), copy_id(f"{entry.name}_sum", number), entry.meta)
        if slot.role == "gradient":
            return total
        return self._call(aten.div.Tensor, (total, self.count), f"{entry.name}_mean", entry.meta)

    def _call(self, target: Any, args: tuple[Any, ...], name: str, meta: Mapping[str, Any]) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, name=name)
        node.meta = {key: entry for key, entry in meta.items() if key not in (ORIGIN, "val", "tensor_meta", "desc")}
        node.meta["val"] = stand_in(node)
        return node


def _require_mean(traced: Traced) -> None:
    """A loss op that says it adds over samples, or that adds up what has a row for each, is refused; no other shows."""
    loss = behind_views(next(node for node, slot in traced.outputs if slot.role == "output"))
    schema = getattr(loss.target, "_schema", None)
    adds = any(declared.name == "reduction" for declared in schema.arguments) if schema is not None else False
    samples = {node.meta["val"].shape[:1] for node, _ in _slots(traced, "input") if _is_tensor(node)}
    sums_rows = loss.target is aten.sum.default and loss.all_input_nodes[0].meta["val"].shape[:1] in samples
    if (adds and argument(loss, "reduction") == _SUM_REDUCTION) or sums_rows:
        raise CaptureError(
            f"the loss ({loss.target}) is a sum over samples, and micro-batches average their losses; give a loss that "
            "is a mean (reduction='mean'), or divide it by the number of samples"
        )


def _slots(traced: Traced, role: str) -> list[tuple[fx.Node, Slot]]:
    """The placeholders of one role."""
    nodes = traced.module.graph.find_nodes(op="placeholder")
    return [(node, slot) for node in nodes if (slot := traced.inputs[node.name]).role == role]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
