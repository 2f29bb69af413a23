"""Cut a batch into parts, and build the whole step from copies of a traced micro-batch, with accumulated gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError, InputError
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import is_random
from dlplacer.frontend.torch.splitting import ORIGIN, call_like
from dlplacer.frontend.torch.tracing.joint import Slot, Traced, is_backward
from dlplacer.frontend.torch.tracing.stand_in import fake_tensor
from dlplacer.planning.pipeline.micro_batch_names import MEAN, SUM, BatchCut, copy_id


def part_of(job: Job, number: int, cut: BatchCut) -> Job:
    """The job with part `number`, from 0, of every input and target that is cut into equal parts.

    Raises InputError if a dimension has no equal parts: the mean over unequal parts would not be the batch's mean.
    """

    def part(leaf: torch.Tensor, position: int) -> torch.Tensor:
        if (dim := cut.dim(position)) is None:
            return leaf
        if leaf.dim() <= dim or leaf.shape[dim] % cut.count or not leaf.shape[dim]:
            raise InputError(
                f"an input of shape {list(leaf.shape)} cannot be cut into {cut.count} equal parts; use a batch that "
                f"{cut.count} divides"
            )
        size = leaf.shape[dim] // cut.count
        return leaf.narrow(dim, number * size, size)

    return with_leaves(job, part)


def with_leaves(job: Job, changed: Callable[[torch.Tensor, int], torch.Tensor]) -> Job:
    """The job with ``changed(tensor, position)`` in place of each tensor among its flat inputs."""
    leaves, tree = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    made = [changed(leaf, place) if isinstance(leaf, torch.Tensor) else leaf for place, leaf in enumerate(leaves)]
    args, kwargs, targets = pytree.tree_unflatten(made, tree)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


aten = torch.ops.aten
_BACKWARD = {"partitioner_tag": "is_backward"}
_COUNTING = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_MEAN_REDUCTION = 1


def in_micro_batches(traced: Traced, inputs: Sequence[Any], cut: BatchCut) -> Traced:
    """The step of a whole batch, built from copies of the traced step of one micro-batch.

    Every copy reads its slice of the inputs and the same parameters. A copy reads buffers as changed by the copy before
    it, so that batch norm sees one micro-batch after another. The loss is Σ wᵢ Lᵢ of the copies' losses Lᵢ; a
    parameter's gradient is Σ wᵢ ∇Lᵢ. Share wᵢ is 1 ÷ count for a mean, 1 for a sum, and Dᵢ ÷ Σ D for losses that are
    means over Dᵢ tokens or weights. `inputs` are the flat inputs of the whole batch.
    """
    made = _Copies(traced, inputs, cut)
    copies = [made.copy(number) for number in range(cut.count)]
    returned = traced.module.graph.output_node()
    entries = returned.args[0]
    assert isinstance(entries, (tuple, list))
    outputs = [
        entry if slot is None or not isinstance(entry, fx.Node) else made.joined(entry, slot, copies)
        for entry, slot in zip(entries, traced.output_slots, strict=True)
    ]
    made.graph.output(outputs).meta = dict(returned.meta)
    made.graph.eliminate_dead_code()
    made.graph.lint()
    return replace(traced, module=fx.GraphModule(traced.module, made.graph))


def divisors(traced: Traced) -> Iterator[fx.Node]:
    """Scalars of a traced micro-batch that may be the divisor of its loss: token counts, sums of class weights.

    They depend only on inputs and buffers; a cross entropy's divisor depends only on its targets and class weights.
    """
    # Values that depend on no parameter, random op or tangent → whether they depend on an input.
    alone: dict[fx.Node, bool] = {}
    for node in traced.module.graph.nodes:
        role = traced.inputs[node.name].role if node.op == "placeholder" else ""
        if role in ("input", "buffer") or node.op == "get_attr":
            alone[node] = role == "input"
        elif node.op == "call_function":
            if not is_random(node) and all(read in alone for read in node.all_input_nodes):
                alone[node] = any(alone[read] for read in node.all_input_nodes)
            is_scalar = _is_tensor(node) and node.meta["val"].numel() == 1 and not is_backward(node)
            if is_scalar and (alone.get(node) or _is_counted(node)):
                yield node


def divisor_value(traced: Traced, node: fx.Node, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of `node`, one of the scalars from `divisors`; `given`: name of a placeholder → its tensor."""
    nodes = traced.module.graph.nodes
    known = {read: given.get(read.name) for read in nodes if read.op == "placeholder"}
    known |= {read: getattr(traced.module, str(read.target)) for read in nodes if read.op == "get_attr"}
    found: torch.Tensor = _computed(
        node, known, lambda target, args, _name, kwargs=None: target(*args, **(kwargs or {}))
    )
    return found


def _computed(node: fx.Node, known: dict[fx.Node, Any], call: Callable[..., Any]) -> Any:
    """A divisor from `known` values; ``call(target, args, name, kwargs)`` evaluates a call or adds it to a graph."""
    if node not in known:
        value = partial(_computed, known=known, call=call)
        if _is_counted(node):
            # The total weight of targets that are not ignored, from targets and class weights only.
            _, target, weight, _, ignored = fx.map_arg((None, *node.args[0].args[1:5]), value)  # type: ignore[union-attr]
            counts = call(aten.ne.Scalar, (target, ignored), "counted")
            if weight is not None:
                label = call(aten.mul.Tensor, (target, counts), "counted")
                weights = call(aten.index.Tensor, (weight, [label]), "counted")
                counts = call(aten.mul.Tensor, (weights, counts), "counted")
            known[node] = call(aten.sum.default, (counts,), "counted")
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value)
            known[node] = call(node.target, args, f"{node.name}_share", kwargs)
    return known[node]


class _Copies:
    """The graph of all copies: shared nodes first, then copy after copy, then the nodes that join them.

    `shared`: placeholder, constant, or value that depends only on parameters → its node in the new graph. `sliced`:
    [micro-batch] → `shared` with its slices of inputs. `newest`: name of a buffer → its value after the copies made so
    far. `counts`: [micro-batch] → divisor; `shares`: divisor ÷ sum of divisors; both are empty for means and sums.
    """

    def __init__(self, traced: Traced, inputs: Sequence[Any], cut: BatchCut) -> None:
        self.traced, self.cut, self.graph = traced, cut, fx.Graph()
        self.newest: dict[str, fx.Node] = {}
        nodes = traced.module.graph.nodes
        self.shared = {node: self.graph.node_copy(node) for node in nodes if node.op in ("placeholder", "get_attr")}
        for node, slot in _slots(traced, "input"):
            if _is_tensor(node):
                self.shared[node].meta["val"] = fake_tensor(inputs[slot.position], node.meta["val"].fake_mode)
        for node, _ in _slots(traced, "tangent") if cut.joining == MEAN else ():
            divided = self.shared[node], cut.count
            self.shared[node] = self._call(aten.div.Tensor, divided, f"{node.name}_share", meta=_BACKWARD)
        # Views, casts and norms of parameters are computed once: if several stages read one, it is sent once per step,
        # not once per micro-batch.
        alone = {node for node, _ in _slots(traced, "parameter")}
        for node in nodes:
            read = node.all_input_nodes
            if node.op == "call_function" and read and not is_random(node) and all(each in alone for each in read):
                alone.add(node)
                self.shared[node] = self.graph.node_copy(node, self.shared.__getitem__)
        self.sliced = [self._sliced(number) for number in range(cut.count)]
        self.counts: list[fx.Node] = []
        self.shares: list[fx.Node] = []
        if cut.joining not in (MEAN, SUM):
            named = {node.name: node for node in divisors(traced)}
            if cut.joining not in named:
                raise CaptureError(
                    f"micro-batches are to be weighted by {cut.joining!r}, which this step does not compute from its "
                    "inputs; plan the pipeline again"
                )
            # Computed outside the copies, because all are needed before the first backward.
            self.counts = [_computed(named[cut.joining], dict(made), self._call) for made in self.sliced]
            total = self.counts[0]
            for count in self.counts[1:]:
                total = self._call(aten.add.Tensor, (total, count), "share_total")
            self.shares = [self._call(aten.div.Tensor, (count, total), "share") for count in self.counts]

    def _sliced(self, number: int) -> dict[fx.Node, fx.Node]:
        made = dict(self.shared)
        for node, slot in _slots(self.traced, "input"):
            dim = self.cut.dim(slot.position)
            if node.users and _is_tensor(node) and dim is not None:
                size = node.meta["val"].shape[dim]
                where = (self.shared[node], dim, number * size, (number + 1) * size)
                made[node] = self._call(aten.slice.Tensor, where, copy_id(node.name, number))
        return made

    def copy(self, number: int) -> dict[fx.Node, fx.Node]:
        """Node of the traced micro-batch → its node in copy `number`."""
        made = dict(self.sliced[number])
        for node, slot in _slots(self.traced, "buffer"):
            made[node] = self.newest.get(slot.name, made[node])
        for node, _ in _slots(self.traced, "tangent") if self.shares else ():
            shared = made[node], self.shares[number]
            made[node] = self._call(aten.mul.Tensor, shared, f"{node.name}_share", meta=_BACKWARD)
        for node in self.traced.module.graph.nodes:
            if node.op == "call_function" and node not in made:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
                made[node] = self.graph.create_node(node.op, node.target, args, kwargs, copy_id(node.name, number))
                made[node].meta = {ORIGIN: node.name, **node.meta}
        self.newest |= {slot.name: made[entry] for entry, slot in self.traced.outputs if slot.role == "mutation"}
        return made

    def joined(self, entry: fx.Node, slot: Slot, copies: Sequence[dict[fx.Node, fx.Node]]) -> fx.Node:
        """The step's output in place of one micro-batch's output."""
        if slot.role == "mutation":
            return self.newest[slot.name]
        if slot.role == "gradient" and _adds_partial_gradients(entry):
            # Joined over micro-batches before they are added, a tied tensor's gradients are sent once per step, not
            # once per micro-batch.
            parts = tuple(self.joined(part, slot, copies) for part in entry.all_input_nodes)
            total = self._call(aten.add.Tensor, parts, f"{entry.name}_joined", meta=entry.meta)
            total.meta[ORIGIN] = entry.name
            return total
        terms = [made[entry] for made in copies]
        if slot.role == "output":
            terms = [self._share_of(loss, number) for number, loss in enumerate(terms)]
        total = terms[0]
        for number, term in enumerate(terms[1:], 1):
            total = self._call(aten.add.Tensor, (total, term), copy_id(f"{entry.name}_sum", number), meta=entry.meta)
        if slot.role == "gradient" or self.cut.joining != MEAN:
            return total
        return self._call(aten.div.Tensor, (total, self.cut.count), f"{entry.name}_mean", meta=entry.meta)

    def _share_of(self, loss: fx.Node, number: int) -> fx.Node:
        """The loss of a micro-batch times its share; 0 if its divisor is 0, because a mean over nothing is NaN."""
        if not self.shares:
            return loss
        is_empty = self._call(aten.eq.Scalar, (self.counts[number], 0), f"{loss.name}_empty", meta=loss.meta)
        kept = self._call(aten.masked_fill.Scalar, (loss, is_empty, 0.0), f"{loss.name}_kept", meta=loss.meta)
        return self._call(aten.mul.Tensor, (kept, self.shares[number]), f"{loss.name}_part", meta=loss.meta)

    def _call(
        self, target: Any, args: tuple[Any, ...], name: str, kwargs: Any = None, meta: Mapping[str, Any] | None = None
    ) -> fx.Node:
        node = call_like(self.graph, target, args, meta or {}, name, kwargs)
        node.meta.pop(ORIGIN, None)
        return node


def _adds_partial_gradients(node: fx.Node) -> bool:
    """True if the node adds two gradients of one parameter that several modules read."""
    if node.target is not aten.add.Tensor or len(node.all_input_nodes) != 2 or node.kwargs or not is_backward(node):
        return False
    return len({str(part.meta.get("fwd_nn_module_stack")) for part in node.all_input_nodes}) > 1


def _is_counted(node: fx.Node) -> bool:
    """True if a node is the total weight by which a cross entropy divides its sum."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.target not in _COUNTING:
        return False
    return node.args[1:] == (1,) and bool(source.args[3] == _MEAN_REDUCTION)


def _slots(traced: Traced, role: str) -> list[tuple[fx.Node, Slot]]:
    """The placeholders of one role."""
    nodes = traced.module.graph.find_nodes(op="placeholder")
    return [(node, slot) for node in nodes if (slot := traced.inputs[node.name]).role == role]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
