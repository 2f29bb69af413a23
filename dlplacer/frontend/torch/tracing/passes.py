"""Rewrites of the traced ATen graph before it becomes a dataflow graph. A graph records their names for apply."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import behind_views, is_check, picked_output
from dlplacer.frontend.torch.refusals import require_fixed_shapes
from dlplacer.frontend.torch.splitting import call_like, is_split, parse_splits, split_ops
from dlplacer.frontend.torch.tracing.autocast_lists import CUDA_AUTOCAST
from dlplacer.frontend.torch.tracing.fused_lstm import FUSED_LSTM
from dlplacer.frontend.torch.tracing.joint import Traced, is_backward
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of, is_micro_batch_rewrite

aten = torch.ops.aten
_VIEWS = (aten.t.default, aten.view.default)
_FEWEST = 4
_Row: TypeAlias = tuple[Any, ...]
_Rows: TypeAlias = tuple[_Row, ...]


@dataclass(frozen=True)
class _Term:
    """A summand that is linear in rows, a product XᵀY or the sum of the rows of X, behind views of its value."""

    call: fx.Node
    views: tuple[fx.Node, ...]

    @property
    def is_product(self) -> bool:
        return self.call.target is aten.mm.default

    @property
    def rows(self) -> Any:
        """X; Xᵀ and Y of a product are one node where a transpose is squared."""
        first: Any = self.call.args[0]
        return first.all_input_nodes[0] if self.is_product else first

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for terms whose rows can be put together."""
        value = self.call.meta["val"]
        views = tuple((view.target, str(view.args[1:])) for view in self.views)
        return self.call.target, tuple(value.shape), value.dtype, views


def join_gradients(graph: fx.Graph) -> None:
    """Make a sum of products one product: Σ XₜᵀYₜ is XᵀY of all rows, in the order in which they are computed.

    The weight of a layer that is called step by step has such a sum as its gradient. Each product is as large as the
    weight, so that writing and adding them takes longer than the arithmetic. With them the sums of the same rows are
    joined, which are the gradients of biases. Elements are added in another order, which changes the rounding. Sums of
    fewer than four stay: those are rather branches that share a weight, which may run on devices of their own. What is
    joined does not depend on the batch, so that a step of part of it has the same ops.
    """
    drop_sums_of_one(graph)
    rows: dict[_Rows, fx.Node] = {}
    sums = _sums_of(graph)
    # Rows of products first: a sum of rows is only joined where its rows lie together already.
    for products in (True, False):
        for total in sums:
            _join(graph, total, products, rows)
    graph.eliminate_dead_code()


def stack_gradients(graph: fx.Graph) -> None:
    """Make the gradients of all slices of a dimension one stack, or one concatenation.

    If a model reads ``x[:, 0]``, ``x[:, 1]`` and so on, each gradient is put into zeros of the size of x, and these
    are added: for n slices 2n - 1 ops as large as all of x. Attention does so with queries, keys and values, a
    hand-made recurrent layer with every step of its sequence. Adding zeros rounds nothing: the elements stay the same,
    but for the sign of zeros, and for the order of summation where x is read as a whole more than once besides.
    Slices that overlap or leave a place out are added as before.
    """
    for total in _sums_of(graph):
        groups: dict[tuple[Any, ...], list[Any]] = {}
        terms = _terms_of(total)
        for term in terms:
            if term.target in _SLICED and len(term.users) == 1 and not term.kwargs:
                groups.setdefault((term.target, str(term.args[1]), term.args[2]), []).append(term)
        whole = [ordered for slices in groups.values() if (ordered := _consecutive(slices))]
        stacked = {term for slices in whole for term in slices}
        with graph.inserting_before(total):
            made = [
                call_like(
                    graph,
                    _SLICED[first.target],
                    ([first.args[0], *(each.args[0] for each in more)], first.args[2]),
                    total.meta,
                )
                for first, *more in whole
            ]
            _replace(graph, total, made, [term for term in terms if term not in stacked])
    graph.eliminate_dead_code()


_SLICED: dict[Any, Any] = {
    aten.select_backward.default: aten.stack.default,
    aten.slice_backward.default: aten.cat.default,
}
"""Gradient of a place or a range of a dimension → what joins those of all places."""


def _consecutive(terms: Sequence[Any]) -> list[Any]:
    """Gradients of ranges by place, empty unless they follow each other from the first place to the last."""
    size = terms[0].meta["val"].shape[terms[0].args[2]]
    if not size or not all(isinstance(bound, int) for term in terms for bound in term.args[3:]):
        return []
    bounds = (term.args[3:] if term.args[4:] else (term.args[3] % size, term.args[3] % size + 1) for term in terms)
    ranges = sorted((*slice(*each).indices(size), number) for number, each in enumerate(bounds))
    begins, ends, steps, numbers = zip(*ranges, strict=True)
    return [terms[number] for number in numbers] if (*begins, size) == (0, *ends) and {*steps} == {1} else []


def drop_sums_of_one(graph: fx.Graph) -> None:
    """Leave out sums over a kept dimension of one element, which autograd makes where nothing was broadcast.

    A model's own sum stays: it is a copy, which does not change when the parameter or buffer that it read changes.
    """
    for node in filter(is_backward, graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)):
        source, dims = node.args[0], node.args[1]
        value = source.meta["val"]
        kept = node.args[2:] == (True,) and not node.kwargs and value.dtype == node.meta["val"].dtype
        if kept and dims and all(value.shape[dim] == 1 for dim in dims):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _sums_of(graph: fx.Graph) -> list[fx.Node]:
    """The additions of two tensors of one shape and dtype that are no summand of another."""
    return [
        node
        for node in graph.nodes
        if _is_addition(node) and not (len(node.users) == 1 and _is_addition(next(iter(node.users))))
    ]


def _terms_of(total: fx.Node) -> list[fx.Node]:
    """The terms of a sum in their written order, with nested sums resolved."""
    found, open_nodes = [], list(reversed(total.all_input_nodes))
    while open_nodes:
        node = open_nodes.pop()
        if _is_addition(node) and len(node.users) == 1:
            open_nodes += reversed(node.all_input_nodes)
        else:
            found.append(node)
    return found


def _is_addition(node: fx.Node) -> bool:
    """True if it adds two different tensors of one shape and dtype."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [read.meta["val"] for read in (*node.all_input_nodes, node)]
    return len({(value.shape, value.dtype) for value in values}) == 1


def _join(graph: fx.Graph, total: fx.Node, products: bool, rows: dict[_Rows, fx.Node]) -> None:
    """Replace the terms of a sum that can be joined; `rows` has the rows that lie together by now."""
    groups: dict[tuple[Any, ...], list[_Term]] = {}
    parts = []
    for leaf in _terms_of(total):
        term = _term(leaf)
        if term is None or term.is_product != products:
            parts.append(leaf)
        else:
            groups.setdefault(term.form, []).append(term)
    joined = []
    for terms in groups.values():
        terms.sort(key=lambda term: _row(term.rows)[0])
        made = rows.get(tuple(_row(term.rows) for term in terms))
        if len(terms) >= _FEWEST and (products or (made is not None and made < total)):
            joined.append(terms)
        else:
            parts += [(*term.views, term.call)[0] for term in terms]
    with graph.inserting_before(total):
        _replace(graph, total, [_joined(graph, terms, rows) for terms in joined], parts)


def _replace(graph: fx.Graph, total: fx.Node, made: Sequence[fx.Node], parts: Sequence[fx.Node]) -> None:
    """Let the readers of a sum read that of what was made, if anything, and of the other parts."""
    result, *others = (*made, *parts)
    for part in others if made else ():
        result = call_like(graph, aten.add.Tensor, (result, part), total.meta)
    if made:
        total.replace_all_uses_with(result)


def _joined(graph: fx.Graph, terms: Sequence[_Term], rows: dict[_Rows, fx.Node]) -> fx.Node:
    call = terms[0].call
    left = _together(graph, [term.rows for term in terms], call, rows)
    if terms[0].is_product:
        factors: list[Any] = [term.call.args[1] for term in terms]
        right = _together(graph, factors, call, rows)
        node = call_like(graph, call.target, (call_like(graph, aten.t.default, (left,), call.meta), right), call.meta)
    else:
        node = call_like(graph, call.target, (left, *call.args[1:]), call.meta)
    for view in reversed(terms[0].views):
        node = call_like(graph, view.target, (node, *view.args[1:]), view.meta)
    return node


def _together(graph: fx.Graph, parts: Sequence[fx.Node], like: fx.Node, rows: dict[_Rows, fx.Node]) -> fx.Node:
    """All rows in one matrix, made once, as soon as the last of them is available."""
    key = tuple(_row(part) for part in parts)
    if key not in rows:
        with graph.inserting_after(max(parts)):
            rows[key] = call_like(graph, aten.cat.default, (list(parts),), like.meta)
    return rows[key]


def _term(leaf: fx.Node) -> _Term | None:
    """A summand behind views that nothing else reads, if it is of a kind that can be joined."""
    views = []
    call: Any = leaf
    while call.target in _VIEWS and len(call.users) == 1:
        views.append(call)
        call = call.all_input_nodes[0]
    read: Any = call.args[0] if call.args else None
    joins = call.target is aten.mm.default and read.target is aten.t.default
    if call.target is aten.sum.dim_IntList and not call.kwargs:
        value = read.meta["val"]
        joins = value.dim() == 2 and list(call.args[1]) == [0] and value.dtype == call.meta["val"].dtype
    return _Term(call, tuple(views)) if joins and len(call.users) == 1 else None


def _row(node: fx.Node) -> _Row:
    """Equal for the same matrix: a tensor is often viewed alike once for each of its readers."""
    source = node.all_input_nodes[0] if node.target is aten.view.default else node
    return source, *node.meta["val"].shape


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
            with graph.inserting_before(node):
                args = (*node.args[:-1], part_mask)
                part = call_like(graph, node.target, args, node.meta, f"{node.name}_{suffix}", node.kwargs)
            for getitem in [user for user in node.users if part_mask[picked_output(user)]]:
                output = picked_output(getitem)
                with graph.inserting_before(getitem):
                    picked = call_like(graph, operator.getitem, (part, output), getitem.meta, f"{part.name}_{output}")
                getitem.replace_all_uses_with(picked)
        for getitem in list(node.users):
            graph.erase_node(getitem)
        graph.erase_node(node)


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
