"""Sums of the gradients of a tensor's slices → one tensor put together from them."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from dlplacer.frontend.torch.tracing.sums import call_like, sums_of, terms_of

aten = torch.ops.aten


def stack_gradients(graph: fx.Graph) -> None:
    """Make the gradients of all slices of a dimension one stack, or one concatenation.

    If a model reads ``x[:, 0]``, ``x[:, 1]`` and so on, each gradient is put into zeros of the size of x, and these
    are added: for n slices 2n - 1 ops as large as all of x. Attention does so with queries, keys and values, a
    hand-made recurrent layer with every step of its sequence. Adding zeros rounds nothing: the elements stay the same,
    but for the sign of zeros, and for the order of summation where x is read as a whole more than once besides.
    Slices that overlap or leave a place out are added as before.
    """
    for total in sums_of(graph):
        _stack(graph, total)
    graph.eliminate_dead_code()


def _stack(graph: fx.Graph, total: fx.Node) -> None:
    groups: dict[tuple[Any, ...], list[fx.Node]] = {}
    terms = terms_of(total)
    for term in terms:
        if term.target in _IN_ORDER and len(term.users) == 1 and not term.kwargs:
            groups.setdefault((term.target, str(term.args[1]), term.args[2]), []).append(term)
    whole = {slices[0]: ordered for slices in groups.values() if (ordered := _IN_ORDER[slices[0].target](slices))}
    if not whole:
        return
    with graph.inserting_before(total):
        made = [call_like(graph, _JOINED[first.target], _args(slices), total) for first, slices in whole.items()]
        stacked = {term for slices in whole.values() for term in slices}
        result = made[0]
        for part in (*made[1:], *(term for term in terms if term not in stacked)):
            result = call_like(graph, aten.add.Tensor, (result, part), total)
    total.replace_all_uses_with(result)


def _args(slices: Sequence[fx.Node]) -> tuple[list[Any], Any]:
    return [term.args[0] for term in slices], slices[0].args[2]


def _size(term: fx.Node) -> int:
    """Elements of the dimension that is sliced."""
    size: int = term.meta["val"].shape[term.args[2]]
    return size


def _selected(terms: Sequence[fx.Node]) -> list[fx.Node]:
    """Gradients of single places by place, empty unless each place has one."""
    size = _size(terms[0])
    if len(terms) != size or not all(isinstance(term.args[3], int) for term in terms):
        return []
    by_place = {term.args[3] % size: term for term in terms}  # type: ignore[operator]
    return [by_place[place] for place in range(size)] if len(by_place) == size else []


def _sliced(terms: Sequence[fx.Node]) -> list[fx.Node]:
    """Gradients of ranges by place, empty unless they follow each other from the first place to the last."""
    size = _size(terms[0])
    if not size or not all(isinstance(bound, int) for term in terms for bound in term.args[3:]):
        return []
    ranges = sorted((*slice(*term.args[3:]).indices(size), number) for number, term in enumerate(terms))
    ends = [(0, 0), *((start, stop) for start, stop, _, _ in ranges), (size, size)]
    follow = all(before[1] == after[0] for before, after in pairwise(ends))
    return [terms[number] for *_, number in ranges] if follow and all(step == 1 for _, _, step, _ in ranges) else []


_IN_ORDER: dict[Any, Callable[[Sequence[fx.Node]], list[fx.Node]]] = {
    aten.select_backward.default: _selected,
    aten.slice_backward.default: _sliced,
}
"""Op → its gradients in the order of their places, none where they are not all of the dimension."""

_JOINED: dict[Any, Any] = {
    aten.select_backward.default: aten.stack.default,
    aten.slice_backward.default: aten.cat.default,
}
