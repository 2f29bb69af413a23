"""Parts of a batch; and a traced micro-batch → the whole step: a copy of it for each, with gradients accumulated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError, InputError
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.nodes import is_random
from dlplacer.frontend.torch.splitting import ORIGIN, call_like
from dlplacer.frontend.torch.tracing.joint import Slot, Traced, is_backward
from dlplacer.frontend.torch.tracing.stand_in import fake_tensor
from dlplacer.planning.pipeline.micro_batch_names import MEAN, SUM, BatchCut, copy_id

Dims: TypeAlias = tuple[int | None, ...]
"""[flat input] → dimension that is cut, None for an input that is not."""

_BATCH_DIMS = (0, 1)


def part_of(job: Job, number: int, cut: BatchCut) -> Job:
    """The job with one of the equal parts of every input and target that the cut names.

    A dimension that cannot be cut into equal parts is refused: means over unequal parts are no mean of the batch.
    """
    return with_leaves(job, lambda leaf, position: _part(leaf, cut.dim(position), number, cut.count))


def with_leaves(job: Job, changed: Callable[[torch.Tensor, int], torch.Tensor]) -> Job:
    """The job with other tensors as inputs and targets: ``changed(tensor, position)`` among its flat inputs."""
    leaves, tree = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    made = [changed(leaf, place) if isinstance(leaf, torch.Tensor) else leaf for place, leaf in enumerate(leaves)]
    args, kwargs, targets = pytree.tree_unflatten(made, tree)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


def likely_dims(job: Job, count: int) -> Iterator[Dims]:
    """Dimensions along which a job's inputs may be cut into so many equal parts, the most plausible first.

    A batch size is a size of dimension 0 or 1 that some input has; the more inputs have it, the sooner it comes. Each
    input is cut where it has that size, dimension 0 first. Then come variants in which one input is cut elsewhere or
    not at all: sizes may be equal by chance.
    """
    shapes = [leaf.shape if isinstance(leaf, torch.Tensor) else () for leaf in flat_inputs(job)]
    sizes = [{dim: int(shape[dim]) for dim in _BATCH_DIMS if dim < len(shape)} for shape in shapes]
    shared: dict[tuple[int, int], int] = {}
    for place in sorted({place for each in sizes for place in each.items()}):
        dim, size = place
        if size >= count and size % count == 0:
            shared[place] = sum(size in each.values() for each in sizes)
    found: dict[Dims, None] = {}
    variants: list[Dims] = []
    for dim, size in sorted(shared, key=lambda place: (-shared[place], place[0])):
        order = (dim, 1 - dim)
        has = [[each for each in order if mine.get(each) == size] for mine in sizes]
        base = tuple(next(iter(dims), None) for dims in has)
        found.setdefault(base)
        for position, dims in enumerate(has):
            others = (*dims[1:], None) if dims else ()
            variants += [(*base[:position], other, *base[position + 1 :]) for other in others]
    yield from dict.fromkeys((*found, *(dims for dims in variants if any(dim is not None for dim in dims))))


def _part(leaf: torch.Tensor, dim: int | None, number: int, count: int) -> torch.Tensor:
    if dim is None:
        return leaf
    if leaf.dim() <= dim or leaf.shape[dim] % count or not leaf.shape[dim]:
        raise InputError(
            f"an input of shape {list(leaf.shape)} cannot be cut into {count} equal parts; use a batch that "
            f"{count} divides"
        )
    size = leaf.shape[dim] // count
    return leaf.narrow(dim, number * size, size)


aten = torch.ops.aten
_BACKWARD = {"partitioner_tag": "is_backward"}
_COUNTING = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_MEAN_REDUCTION = 1


def in_micro_batches(traced: Traced, inputs: Sequence[Any], cut: BatchCut) -> Traced:
    """The step of a whole batch, made of copies of the traced step of one micro-batch.

    Every copy reads its slice of the inputs and the same parameters; a buffer that a copy changes is read changed by
    the next, so that batch norm sees one micro-batch after another. The loss joins the copies' losses Lᵢ by shares
    wᵢ, and a parameter's gradient is Σ wᵢ ∇Lᵢ. The shares are 1 ÷ count for a mean, 1 for a sum, and Dᵢ ÷ Σ D for
    losses that are means over Dᵢ tokens or weights. `inputs` are the flat inputs of the whole batch.
    """
    return _Copies(traced, inputs, cut).joined()


def divisors(traced: Traced) -> Iterator[fx.Node]:
    """Scalars of a traced micro-batch by which its loss may be a mean: counts of tokens, sums of class weights.

    They depend on inputs and buffers alone, so they are known before any micro-batch has run. The weight that
    cross entropy divides by is one too, as it depends on its targets alone.
    """
    for node in traced.module.graph.nodes:
        value = node.meta.get("val")
        is_scalar = node.op == "call_function" and isinstance(value, torch.Tensor) and value.numel() == 1
        if is_scalar and not is_backward(node) and (_is_counted(node) or _reads_inputs_alone(traced, node)):
            yield node


def divisor_value(traced: Traced, node: fx.Node, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value of one of `divisors`, computed from the tensors given by the names of their placeholders."""
    known: dict[fx.Node, Any] = {}
    for read in traced.module.graph.nodes:
        if read.op == "placeholder":
            known[read] = given.get(read.name)
        elif read.op == "get_attr":
            known[read] = getattr(traced.module, str(read.target))
    found: torch.Tensor = _computed(node, known, lambda target, args, name, kwargs: target(*args, **kwargs))
    return found


def _computed(node: fx.Node, known: dict[fx.Node, Any], call: Callable[..., Any]) -> Any:
    """A divisor from what is known; ``call(target, args, name, kwargs)`` makes or computes one call."""
    if node not in known:

        def value(read: fx.Node) -> Any:
            return _computed(read, known, call)

        if _is_counted(node):
            known[node] = _counted(node, value, lambda target, args: call(target, args, "counted", {}))
        else:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value)
            known[node] = call(node.target, args, f"{node.name}_share", kwargs)
    return known[node]


class _Copies:
    """Builds the graph of all copies: shared nodes first, then copy after copy, then the nodes that join them.

    `shared`: placeholder, constant, or what depends on parameters alone → its node in the new graph. `newest`: name of
    a buffer → its value after the copies made so far. `counts`, `shares`: [micro-batch] → its divisor, and that over
    the sum of all; empty where the losses are averaged or added.
    """

    def __init__(self, traced: Traced, inputs: Sequence[Any], cut: BatchCut) -> None:
        self.traced, self.cut = traced, cut
        self.graph = fx.Graph()
        self.shared: dict[fx.Node, fx.Node] = {}
        self.newest: dict[str, fx.Node] = {}
        for node in traced.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.shared[node] = self.graph.node_copy(node)
        for node, slot in _slots(traced, "input"):
            if _is_tensor(node):
                self.shared[node].meta["val"] = fake_tensor(inputs[slot.position], node.meta["val"].fake_mode)
        if cut.joining == MEAN:
            for node, _ in _slots(traced, "tangent"):
                self.shared[node] = self._scaled(self.shared[node], f"{node.name}_share", _BACKWARD)
        self._share_weights()
        self.sliced = [self._sliced(number) for number in range(cut.count)]
        self.counts: list[fx.Node] = []
        self.shares = [] if cut.joining in (MEAN, SUM) else self._shares()

    def joined(self) -> Traced:
        """All copies, their losses joined and their gradients added."""
        copies = [self._copy(number) for number in range(self.cut.count)]
        returned = self.traced.module.graph.output_node()
        entries = returned.args[0]
        assert isinstance(entries, (tuple, list))
        outputs = [
            entry if slot is None or not isinstance(entry, fx.Node) else self._joined(entry, slot, copies)
            for entry, slot in zip(entries, self.traced.output_slots, strict=True)
        ]
        self.graph.output(outputs).meta = dict(returned.meta)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return replace(self.traced, module=fx.GraphModule(self.traced.module, self.graph))

    def _share_weights(self) -> None:
        """Compute values that depend on parameters alone only once: views, casts, normalised weights.

        A weight that several stages read then crosses between them once a step, not once a micro-batch.
        """
        alone = {node for node, _ in _slots(self.traced, "parameter")}
        for node in self.traced.module.graph.nodes:
            read = node.all_input_nodes
            if node.op == "call_function" and read and not is_random(node) and all(each in alone for each in read):
                alone.add(node)
                self.shared[node] = self.graph.node_copy(node, self.shared.__getitem__)

    def _sliced(self, number: int) -> dict[fx.Node, fx.Node]:
        """Placeholder or constant → the slice that this copy reads."""
        made = dict(self.shared)
        for node, slot in _slots(self.traced, "input"):
            dim = self.cut.dim(slot.position)
            if node.users and _is_tensor(node) and dim is not None:
                size = node.meta["val"].shape[dim]
                where = (self.shared[node], dim, number * size, (number + 1) * size)
                made[node] = self._call(aten.slice.Tensor, where, copy_id(node.name, number))
        return made

    def _shares(self) -> list[fx.Node]:
        named = {node.name: node for node in divisors(self.traced)}
        if self.cut.joining not in named:
            raise CaptureError(
                f"micro-batches are to be weighted by {self.cut.joining!r}, which this step does not compute from its "
                "inputs; plan the pipeline again"
            )
        # Computed apart from the copies: all are needed before the first backward.
        self.counts = [_computed(named[self.cut.joining], dict(made), self._call) for made in self.sliced]
        total = self.counts[0]
        for count in self.counts[1:]:
            total = self._call(aten.add.Tensor, (total, count), "share_total")
        return [self._call(aten.div.Tensor, (count, total), "share") for count in self.counts]

    def _copy(self, number: int) -> dict[fx.Node, fx.Node]:
        """Node of the micro-batch → node of this copy of it."""
        made = dict(self.sliced[number])
        for node, slot in _slots(self.traced, "buffer"):
            made[node] = self.newest.get(slot.name, made[node])
        for node, _ in _slots(self.traced, "tangent") if self.shares else ():
            made[node] = self._call(
                aten.mul.Tensor, (made[node], self.shares[number]), f"{node.name}_share", meta=_BACKWARD
            )
        for node in self.traced.module.graph.nodes:
            if node.op == "call_function" and node not in made:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), made.__getitem__)
                copied = self.graph.create_node(node.op, node.target, args, kwargs, copy_id(node.name, number))
                copied.meta = {ORIGIN: node.name, **node.meta}
                made[node] = copied
        for entry, slot in self.traced.outputs:
            if slot.role == "mutation":
                self.newest[slot.name] = made[entry]
        return made

    def _scaled(self, node: fx.Node, name: str, meta: Mapping[str, Any]) -> fx.Node:
        return self._call(aten.div.Tensor, (node, self.cut.count), name, meta=meta)

    def _joined(self, entry: fx.Node, slot: Slot, copies: Sequence[dict[fx.Node, fx.Node]]) -> fx.Node:
        if slot.role == "mutation":
            return self.newest[slot.name]
        if slot.role == "gradient":
            return self._gradient(entry, copies)
        losses = [self._share_of(made[entry], number) for number, made in enumerate(copies)]
        total = self._added(entry, losses)
        return self._scaled(total, f"{entry.name}_mean", entry.meta) if self.cut.joining == MEAN else total

    def _share_of(self, loss: fx.Node, number: int) -> fx.Node:
        """The loss of a micro-batch times its share; 0 where its divisor is, as a mean over nothing is not a number."""
        if not self.shares:
            return loss
        is_empty = self._call(aten.eq.Scalar, (self.counts[number], 0), f"{loss.name}_empty", meta=loss.meta)
        kept = self._call(aten.masked_fill.Scalar, (loss, is_empty, 0.0), f"{loss.name}_kept", meta=loss.meta)
        return self._call(aten.mul.Tensor, (kept, self.shares[number]), f"{loss.name}_part", meta=loss.meta)

    def _gradient(self, entry: fx.Node, copies: Sequence[dict[fx.Node, fx.Node]]) -> fx.Node:
        """The gradients of all micro-batches, added; partial ones of a tied tensor before they are joined.

        So the gradient of a tensor that several stages read crosses between them once a step, not once a micro-batch.
        """
        if _adds_partial_gradients(entry):
            parts = [self._gradient(part, copies) for part in entry.all_input_nodes]
            joined = self._call(aten.add.Tensor, tuple(parts), f"{entry.name}_joined", meta=entry.meta)
            joined.meta[ORIGIN] = entry.name
            return joined
        return self._added(entry, [made[entry] for made in copies])

    def _added(self, entry: fx.Node, terms: Sequence[fx.Node]) -> fx.Node:
        total = terms[0]
        for number, term in enumerate(terms[1:], 1):
            total = self._call(aten.add.Tensor, (total, term), copy_id(f"{entry.name}_sum", number), meta=entry.meta)
        return total

    def _call(
        self, target: Any, args: tuple[Any, ...], name: str, kwargs: Any = None, meta: Mapping[str, Any] | None = None
    ) -> fx.Node:
        node = call_like(self.graph, target, args, meta or {}, name, kwargs)
        node.meta.pop(ORIGIN, None)
        return node


def _adds_partial_gradients(node: fx.Node) -> bool:
    """True if autograd adds two gradients here, of one parameter that several modules read."""
    if node.target is not aten.add.Tensor or len(node.all_input_nodes) != 2 or node.kwargs or not is_backward(node):
        return False
    owners = {str(part.meta.get("fwd_nn_module_stack")) for part in node.all_input_nodes}
    return len(owners) > 1


def _is_counted(node: fx.Node) -> bool:
    """True if this is the weight by which a cross entropy divides its sum."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.target not in _COUNTING:
        return False
    return node.args[1:] == (1,) and bool(source.args[3] == _MEAN_REDUCTION)


def _counted(node: fx.Node, value: Any, call: Any) -> Any:
    """The weight of the targets that are not ignored, from targets and class weights alone."""
    loss = node.args[0]
    assert isinstance(loss, fx.Node)
    _, target, weight, _, ignored = fx.map_arg((None, *loss.args[1:5]), value)
    counts = call(aten.ne.Scalar, (target, ignored))
    if weight is not None:
        label = call(aten.mul.Tensor, (target, counts))
        counts = call(aten.mul.Tensor, (call(aten.index.Tensor, (weight, [label])), counts))
    return call(aten.sum.default, (counts,))


def _reads_inputs_alone(traced: Traced, node: fx.Node) -> bool:
    """True if a value depends on inputs, buffers and constants, and on no parameter, draw or tangent."""
    seen, left = set(), [node]
    reads_input = False
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            role = traced.inputs[node.name].role
            if role not in ("input", "buffer"):
                return False
            reads_input |= role == "input"
        elif is_random(node):
            return False
        left.extend(node.all_input_nodes)
    return reads_input


def _slots(traced: Traced, role: str) -> list[tuple[fx.Node, Slot]]:
    """The placeholders of one role."""
    nodes = traced.module.graph.find_nodes(op="placeholder")
    return [(node, slot) for node in nodes if (slot := traced.inputs[node.name]).role == role]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
