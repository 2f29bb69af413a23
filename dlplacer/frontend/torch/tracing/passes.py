"""Rewrites of the traced ATen graph. The dataflow graph records their names, so that they can be applied again."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import behind_views, is_check, picked_output
from dlplacer.frontend.torch.refusals import require_fixed_shapes
from dlplacer.frontend.torch.splitting import call_like, is_split, parse_splits, split_ops
from dlplacer.frontend.torch.tracing.autocast_lists import CUDA_AUTOCAST
from dlplacer.frontend.torch.tracing.joint import Traced, is_backward
from dlplacer.frontend.torch.tracing.kernels import FUSED_LSTM
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of, is_micro_batch_rewrite

aten = torch.ops.aten
_VIEWS = (aten.t.default, aten.view.default)
_FEWEST = 4


def join_gradients(graph: fx.Graph) -> None:
    """Replace a sum of products by one product: Σ XₜᵀYₜ = XᵀY, where X and Y stack all rows in computation order.

    The weight gradient of a layer that is called step by step is such a sum; writing and adding products as large as
    the weight takes longer than the arithmetic. Sums of the same rows, the bias gradients, are joined too. The new
    order of additions changes the rounding. Sums of fewer than four terms stay: they are probably branches that share a
    weight and may run on separate devices. The choice does not depend on the batch size.
    """
    drop_sums_of_one(graph)
    # Matrices → the node of their concatenated rows.
    rows: dict[tuple[Any, ...], fx.Node] = {}

    def together(parts: Sequence[fx.Node], like: fx.Node) -> fx.Node:
        key = tuple(map(_matrix, parts))
        if key not in rows:
            # Insert the concatenation right after the last of its parts.
            with graph.inserting_after(max(parts)):
                rows[key] = call_like(graph, aten.cat.default, (list(parts),), like.meta)
        return rows[key]

    def join(total: fx.Node, leaves: Sequence[fx.Node]) -> fx.Node | None:
        chains = sorted(map(_chain, leaves), key=lambda chain: _matrix(_rows_of(chain[-1]))[0])
        *views, call = chains[0]
        read = [_rows_of(chain[-1]) for chain in chains]
        lie_together = rows.get(tuple(map(_matrix, read)))
        is_product = call.target is aten.mm.default
        if len(chains) < _FEWEST or not (is_product or (lie_together is not None and lie_together < total)):
            return None
        args = (together(read, call), *call.args[1:])
        if is_product:
            right = together([chain[-1].args[1] for chain in chains], call)
            args = call_like(graph, aten.t.default, args[:1], call.meta), right
        node = call_like(graph, call.target, args, call.meta)
        for view in reversed(views):
            node = call_like(graph, view.target, (node, *view.args[1:]), view.meta)
        return node

    sums = _sums_of(graph)
    # Products first: a sum of rows is joined only if its rows are already concatenated.
    for target in (aten.mm.default, aten.sum.dim_IntList):
        _join_terms(graph, sums, partial(_form, target=target), join)
    graph.eliminate_dead_code()


def _chain(leaf: fx.Node) -> list[Any]:
    """A summand's views that have no other reader, and the call behind them."""
    chain: list[Any] = [leaf]
    while chain[-1].target in _VIEWS and len(chain[-1].users) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    return chain


def _rows_of(call: Any) -> Any:
    """X of a product XᵀY or of a sum of X's rows; Xᵀ and Y are the same node if a transpose is squared."""
    first = call.args[0]
    return first.all_input_nodes[0] if call.target is aten.mm.default else first


def _form(leaf: fx.Node, target: Any) -> Any:
    """A key that is equal for products, or sums of rows, that can be joined; None for other terms."""
    *views, call = _chain(leaf)
    if call.target is not target or call.kwargs or len(call.users) != 1:
        return None
    made, read = call.meta["val"], call.args[0]
    fits = read.target is aten.t.default
    if target is aten.sum.dim_IntList:
        fits = list(call.args[1]) == [0] and read.meta["val"].dim() == 2 and read.meta["val"].dtype == made.dtype
    return (made.shape, made.dtype, [(view.target, view.args[1:]) for view in views]) if fits else None


def _matrix(node: fx.Node) -> tuple[Any, ...]:
    """A key that is equal for the same matrix: a tensor often has an equal view for each of its readers."""
    source = node.all_input_nodes[0] if node.target is aten.view.default else node
    return source, *node.meta["val"].shape


def stack_gradients(graph: fx.Graph) -> None:
    """Replace the sum of the gradients of all slices of a dimension by one stack or concatenation.

    If a model reads ``x[:, 0]``, ``x[:, 1]`` and so on, like attention or a hand-written recurrent layer, each gradient
    is written into zeros of x's size, and these are added: n slices take 2n - 1 ops of x's size. Elements stay the
    same, except for the sign of zeros, and for the order of summation if x is also read as a whole more than once.
    Slices that overlap or leave gaps are added as before.
    """

    def form(term: fx.Node) -> Any:
        fits = term.target in _SLICED and len(term.users) == 1 and not term.kwargs
        return (term.target, *term.args[1:3]) if fits else None

    def join(total: fx.Node, terms: Sequence[Any]) -> fx.Node | None:
        size = terms[0].meta["val"].shape[terms[0].args[2]]
        if not size or not all(isinstance(bound, int) for term in terms for bound in term.args[3:]):
            return None
        bounds = (term.args[3:] if term.args[4:] else (term.args[3] % size, term.args[3] % size + 1) for term in terms)
        ranges = sorted((*slice(*each).indices(size), number) for number, each in enumerate(bounds))
        begins, ends, steps, numbers = zip(*ranges, strict=True)
        # The slices must cover the dimension without gaps or overlaps.
        if (*begins, size) != (0, *ends) or {*steps} != {1}:
            return None
        parts = [terms[number].args[0] for number in numbers]
        return call_like(graph, _SLICED[terms[0].target], (parts, terms[0].args[2]), total.meta)

    _join_terms(graph, _sums_of(graph), form, join)
    graph.eliminate_dead_code()


_SLICED: dict[Any, Any] = {
    aten.select_backward.default: aten.stack.default,
    aten.slice_backward.default: aten.cat.default,
}
"""Gradient op of an index or a range of a dimension → the op that joins gradients of all indices or ranges."""


def drop_sums_of_one(graph: fx.Graph) -> None:
    """Remove sums over kept dimensions of size 1, which autograd adds even if nothing was broadcast.

    A model's own sum stays: it is a copy, which later changes of its parameter or buffer must not reach.
    """
    for node in filter(is_backward, graph.find_nodes(op="call_function", target=aten.sum.dim_IntList)):
        source, dims = node.args[0], node.args[1]
        value = source.meta["val"]
        kept = node.args[2:] == (True,) and not node.kwargs and value.dtype == node.meta["val"].dtype
        if kept and dims and all(value.shape[dim] == 1 for dim in dims):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _sums_of(graph: fx.Graph) -> list[fx.Node]:
    """The additions of two tensors of one shape and dtype that are not terms of another such sum."""
    return [
        node
        for node in graph.nodes
        if _is_addition(node) and not (len(node.users) == 1 and _is_addition(next(iter(node.users))))
    ]


def _join_terms(
    graph: fx.Graph,
    sums: Sequence[fx.Node],
    form: Callable[[fx.Node], Any],
    join: Callable[[fx.Node, Sequence[fx.Node]], fx.Node | None],
) -> None:
    """Replace each sum's terms of equal form by ``join(sum, terms)``, unless `join` returns None."""
    for total in sums:
        groups: dict[str, list[fx.Node]] = {}
        terms, open_nodes = [], list(reversed(total.all_input_nodes))
        while open_nodes:
            node = open_nodes.pop()
            if _is_addition(node) and len(node.users) == 1:
                open_nodes += reversed(node.all_input_nodes)
                continue
            terms.append(node)
            if (found := form(node)) is not None:
                groups.setdefault(str(found), []).append(node)
        with graph.inserting_before(total):
            joined = ((join(total, group), group) for group in groups.values())
            made = {node: group for node, group in joined if node is not None}
            gone = {term for group in made.values() for term in group}
            result, *others = (*made, *(term for term in terms if term not in gone))
            if made:
                for part in others:
                    result = call_like(graph, aten.add.Tensor, (result, part), total.meta)
                total.replace_all_uses_with(result)


def _is_addition(node: fx.Node) -> bool:
    """True if a node adds two different tensors of one shape and dtype."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [read.meta["val"] for read in (*node.all_input_nodes, node)]
    return len({(value.shape, value.dtype) for value in values}) == 1


def drop_detach(graph: fx.Graph) -> None:
    """Make readers of a detached tensor read the tensor itself: the traced gradients are already explicit."""
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def split_convolution_backward(graph: fx.Graph) -> None:
    """Split a convolution's backward into one op for the input gradient and one for weight and bias gradients.

    This takes the weight gradient off the critical path; both ops cost as much as the original. The backward of a
    matrix product is already two products in ATen.
    """
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        mask = node.args[-1]
        # Without an input gradient (first convolution) or a weight gradient (frozen), the backward is one op already.
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
    """Copy gradients that are parameters, buffers, inputs or constants of the step, or views of them.

    A user's function may return a saved tensor as a gradient, and later steps add to gradients in place.
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
"""Name → pass, in the default order of application."""

EVERY_STEP = (*PASSES, FUSED_LSTM, CUDA_AUTOCAST)
"""Rewrites that fit a step in either mode and of any shape."""


def require_known(names: Sequence[str]) -> None:
    """Refuse names that denote no pass, split or micro-batches."""
    for name in names:
        if name not in EVERY_STEP and not is_split(name) and not is_micro_batch_rewrite(name):
            raise CaptureError(
                f"rewrite {name!r} is not known; this version has {', '.join(EVERY_STEP)}, split:OP:AXIS:PARTS and "
                "micro-batches:M"
            )
    parse_splits(names)
    batch_cut_of(names)


def apply_passes(graph: fx.Graph, names: Sequence[str]) -> None:
    """Drop checks, apply the named passes in the order of `names`, then all splits together; drop unread nodes."""
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
