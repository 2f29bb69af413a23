"""Sums of products over the calls of a layer → one product for all of its calls."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from dlplacer.frontend.torch.tracing.joint import is_backward
from dlplacer.frontend.torch.tracing.sums import call_like, sums_of, terms_of

aten = torch.ops.aten
_VIEWS = (aten.t.default, aten.view.default)
_FEWEST = 4
_Row: TypeAlias = tuple[Any, ...]
_Rows: TypeAlias = tuple[_Row, ...]


@dataclass(frozen=True)
class _Term:
    """A summand that is linear in rows: a product XᵀY, or the sum of the rows of X.

    Attributes
    ----------
    views
        The views through which its value reaches the sum.
    """

    call: fx.Node
    views: tuple[fx.Node, ...]

    @property
    def is_product(self) -> bool:
        """True if it has a second factor."""
        return self.call.target is aten.mm.default

    @property
    def form(self) -> tuple[Any, ...]:
        """Equal for terms whose rows can be put together."""
        value = self.call.meta["val"]
        views = tuple((view.target, str(view.args[1:])) for view in self.views)
        return self.call.target, tuple(value.shape), value.dtype, views


def join_gradients(graph: fx.Graph) -> None:
    """Make a sum of products one product: Σ XₜᵀYₜ is XᵀY of all rows, those of X₁ first.

    The weight of a layer that is called step by step has such a sum as its gradient. Each product is as large as the
    weight, so that writing and adding them takes longer than the arithmetic. With them the sums of the same rows are
    joined, which are the gradients of biases. Elements are added in another order, which changes the rounding. Sums of
    fewer than four stay: those are rather branches that share a weight, which may run on devices of their own. What is
    joined does not depend on the batch, so that a step of part of it has the same ops.
    """
    drop_sums_of_one(graph)
    rows: dict[_Rows, fx.Node] = {}
    sums = sums_of(graph)
    # Rows of products first: a sum of rows is only joined where its rows lie together already.
    for products in (True, False):
        for total in sums:
            _join(graph, total, products, rows)
    graph.eliminate_dead_code()


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


def _join(graph: fx.Graph, total: fx.Node, products: bool, rows: dict[_Rows, fx.Node]) -> None:
    """Replace the terms of a sum that can be joined; `rows` has the rows that lie together by now."""
    groups: dict[tuple[Any, ...], list[_Term]] = {}
    kept = []
    for leaf in terms_of(total):
        term = _term(leaf)
        if term is None or term.is_product != products:
            kept.append(leaf)
        else:
            groups.setdefault(term.form, []).append(term)
    joined: list[list[_Term]] = []
    for terms in groups.values():
        together = [terms] if products else _along(terms, {key: made for key, made in rows.items() if made < total})
        large = [some for some in together if len(some) >= _FEWEST]
        joined += large
        apart = set(terms).difference(*large)
        kept += [(*term.views, term.call)[0] for term in terms if term in apart]
    if not joined:
        return
    with graph.inserting_before(total):
        parts = [_joined(graph, terms, rows) for terms in joined]
        result = parts[0]
        for part in (*parts[1:], *kept):
            result = call_like(graph, aten.add.Tensor, (result, part), total)
    total.replace_all_uses_with(result)


def _along(terms: Sequence[_Term], rows: Mapping[_Rows, fx.Node]) -> list[list[_Term]]:
    """Sums of rows in the order in which all of their rows lie together in one of `rows`."""
    of_row: dict[_Row, list[_Term]] = {}
    for term in terms:
        of_row.setdefault(_row(_left_rows(term)), []).append(term)
    found = []
    for key in rows:
        if not Counter(key) - Counter({row: len(there) for row, there in of_row.items()}):
            found.append([of_row[row].pop() for row in key])
    return found


def _joined(graph: fx.Graph, terms: Sequence[_Term], rows: dict[_Rows, fx.Node]) -> fx.Node:
    call = terms[0].call
    left = _together(graph, [_left_rows(term) for term in terms], call, rows)
    if terms[0].is_product:
        right = _together(graph, [_factors(term)[1] for term in terms], call, rows)
        node = call_like(graph, call.target, (call_like(graph, aten.t.default, (left,), call), right), call)
    else:
        node = call_like(graph, call.target, (left, *call.args[1:]), call)
    for view in reversed(terms[0].views):
        node = call_like(graph, view.target, (node, *view.args[1:]), view)
    return node


def _together(graph: fx.Graph, parts: Sequence[fx.Node], like: fx.Node, rows: dict[_Rows, fx.Node]) -> fx.Node:
    """All rows in one matrix, made once, as soon as the last of them is available."""
    key = tuple(_row(part) for part in parts)
    if key not in rows:
        with graph.inserting_after(max(parts)):
            rows[key] = call_like(graph, aten.cat.default, (list(parts),), like)
    return rows[key]


def _term(leaf: fx.Node) -> _Term | None:
    """A summand behind views that nothing else reads, if it is of a kind that can be joined."""
    views = []
    call = leaf
    while call.target in _VIEWS and len(call.users) == 1:
        views.append(call)
        call = call.all_input_nodes[0]
    if len(call.users) != 1 or not (_is_gradient_product(call) or _is_sum_of_rows(call)):
        return None
    return _Term(call, tuple(views))


def _is_gradient_product(node: fx.Node) -> bool:
    left = node.args[0] if node.target is aten.mm.default else None
    return isinstance(left, fx.Node) and left.target is aten.t.default


def _is_sum_of_rows(node: fx.Node) -> bool:
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return False
    value = node.all_input_nodes[0].meta["val"]
    return value.dim() == 2 and list(node.args[1]) == [0] and value.dtype == node.meta["val"].dtype  # type: ignore[arg-type]


def _left_rows(term: _Term) -> fx.Node:
    """X of the product XᵀY, or of the sum."""
    return _factors(term)[0].all_input_nodes[0] if term.is_product else term.call.all_input_nodes[0]


def _factors(term: _Term) -> tuple[fx.Node, fx.Node]:
    """Xᵀ and Y of a product, which are one node where a transpose is squared."""
    left, right = term.call.args
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    return left, right


def _row(node: fx.Node) -> _Row:
    """Equal for the same matrix: a tensor is often viewed alike once for each of its readers."""
    source = node.all_input_nodes[0] if node.target is aten.view.default else node
    return source, *node.meta["val"].shape
