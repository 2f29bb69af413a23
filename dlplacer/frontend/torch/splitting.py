"""Split ops of a traced graph: each part reads slices, and parts are joined only for readers of the whole result.

A graph's list of rewrites records a split by name, for example ``split:convolution_4:batch:2``. The rules give the axes
along which an op can be cut, and the inputs and results of each part.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import (
    argument,
    behind_views,
    is_folded,
    is_random,
    operators,
    picked_output,
    stand_ins,
)
from dlplacer.frontend.torch.tracing.stand_in import undisturbed

aten = torch.ops.aten
SUM = -1
"""Stands in place of a dimension: the whole is the sum of the parts."""
_LETTERS = "bcdefghjklmnopqr"
"""Letters of dimensions in a signature."""


@dataclass(frozen=True)
class Pattern:
    """One way to cut an op along an axis.

    `inputs`: index of an argument (one or more tensors) → the dimension along which a part reads a slice; the other
    arguments are read whole. `named`: the same for keyword arguments. `outputs`: [output] → the dimension along which
    the parts' results are concatenated; `SUM` if they are added; None if there is no tensor, or an empty one.
    `size_at`: index of the argument that gives the size of the cut dimension, as a number or a list of one.
    """

    inputs: Mapping[int, int]
    outputs: tuple[int | None, ...]
    size_at: int | None = None
    named: Mapping[str, int] = field(default_factory=dict)

    def extent(self, node: fx.Node) -> int:
        """Size of the cut dimension."""
        index, dim = next(iter(self.inputs.items()))
        given = node.args[index]
        return int(_value(given[0] if isinstance(given, (list, tuple)) else given).shape[dim])


Patterns = Iterator[tuple[str, Pattern]]


def patterns_of(node: fx.Node) -> dict[str, Pattern]:
    """Axis → the pattern of the cut along it; empty for an op that cannot be cut.

    ``batch`` is dimension 0 and ``channel`` dimension 1 of the data, ``dim2`` the next; ``inner`` is the summed
    (contracted) dimension of a matrix product. Parts of a weight gradient along ``batch`` are added, which changes the
    rounding; along ``channel`` the gradient is exact. An op that draws random numbers, overwrites an argument, or mixes
    elements of different parts is never cut.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return {}
    rule = _RULES.get(node.target)
    if is_folded(node) or node.target._schema.is_mutable or is_random(node):
        return {}
    if rule is None and (torch.Tag.pointwise in node.target.tags or node.target in _POINTWISE):
        rule = _pointwise
    return {} if rule is None else {axis: pattern for axis, pattern in rule(node) if pattern.extent(node) > 1}


def _signature(node: fx.Node, text: str, axes: str, size_at: int | None = None) -> Patterns:
    """The cuts that an einsum-like signature allows: ``bi,ic->bc`` is a matrix product.

    A letter of `axes` is a dimension that can be cut; a result without it is a sum of parts. If a term ends in
    a dot, dimensions count from the first, else from the last; size 1 is broadcast; empty terms mean whole arguments.
    """
    terms, results = (side.split(",") for side in text.split("->"))
    values = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
    for letter in axes:
        sliced = {}
        for index, (term, given) in enumerate(zip(terms, node.args, strict=False)):
            if letter in term and _is_tensor(given):
                dim = term.index(letter) - (0 if term[-1] == "." else len(term) - _value(given).dim())
                if dim >= 0 and _value(given).shape[dim] != 1:
                    sliced[index] = dim
        outputs = [
            None if not term or value is None or not value.numel() else term.find(letter)
            for term, value in zip(results, values, strict=False)
        ]
        if sliced and {*outputs} != {None}:
            yield "inner" if letter == "i" else _axis(_LETTERS.index(letter)), Pattern(sliced, tuple(outputs), size_at)


def _alike(node: fx.Node, term: str, axes: str) -> Patterns:
    """Cuts along dimensions that all inputs and results have in common."""
    return _signature(node, f"{f'{term},' * len(node.args)}->{term},{term},{term}", axes)


def _softmax(node: fx.Node) -> Patterns:
    """Cuts along every dimension except the normalized one."""
    letters = _LETTERS[: node.meta["val"].dim()]
    dim = argument(node, "dim") % (len(letters) or 1)
    return _alike(node, letters, letters[:dim] + letters[dim + 1 :])


def _layer_norm(node: fx.Node) -> Patterns:
    """Cuts along the dimensions that are not normalized."""
    letters = _LETTERS[: _value(node.args[0]).dim() - len(argument(node, "normalized_shape"))]
    return _signature(node, f"{letters}.->{letters}.,{letters}.,{letters}.", letters)


def _layer_norm_backward(node: fx.Node) -> Patterns:
    """Cuts along the samples; gradients of weight and bias are sums of parts.

    Other dimensions are excluded: the CPU kernel reads slices of mean and deviation as if they were contiguous.
    """
    several = _value(node.args[0]).dim() > len(argument(node, "normalized_shape"))
    return _signature(node, "b.,b.,,b.,b.->b.,-,-", "b" if several else "")


def _attention(node: fx.Node, tensors: int) -> Patterns:
    """Cuts along the samples, and along the heads if each query head has its own key head; none with dropout."""
    mask, sizes = argument(node, "attn_mask"), [_value(given).shape for given in node.args[:tensors]]
    alike = "".join(letter for dim, letter in enumerate("bc") if len({size[dim] for size in sizes}) == 1)
    text = f"{'bc.,' * tensors}->bc.,bc.,bc."
    for axis, pattern in _signature(node, text, "" if argument(node, "dropout_p") else alike):
        own = -1 if mask is None else pattern.inputs[0] - 4 + _value(mask).dim()
        yield axis, replace(pattern, named={"attn_mask": own} if own >= 0 and _value(mask).shape[own] > 1 else {})


def _pointwise(node: fx.Node) -> Patterns:
    """Cuts along every dimension of the result; tensors are sliced unless they are broadcast."""
    result = node.meta["val"]
    whole = not isinstance(result, torch.Tensor) or any(map(_is_tensor, node.kwargs.values()))
    letters = "" if whole else _LETTERS[: result.dim()]
    return _alike(node, letters, letters)


def _reduction(node: fx.Node) -> Patterns:
    """Cuts along the dimensions that are kept; for a sum also along reduced ones, as a sum of parts."""
    dims, listed = _value(node.args[0]).dim(), argument(node, "dim")
    letters, reduced = _LETTERS[:dims], {dim % dims for dim in listed or range(dims)} if dims else set()
    gone = "-" if argument(node, "keepdim") else ""
    kept = "".join(gone if dim in reduced else letter for dim, letter in enumerate(letters))
    axes = letters if node.target is aten.sum.dim_IntList else kept.replace("-", "")
    return _signature(node, f"{letters}->{kept or '-'}", axes)


def _concatenation(node: fx.Node) -> Patterns:
    """Cuts along every dimension except the concatenated one."""
    rank = node.meta["val"].dim()
    if all(_value(tensor).dim() == rank for tensor in node.args[0]):  # type: ignore[union-attr]
        for dim in {*range(rank)} - {argument(node, "dim") % rank}:
            yield _axis(dim), Pattern({0: dim}, (dim,))


def _convolution(node: fx.Node) -> Patterns:
    """Cuts along the samples; along output channels, slicing the weight; along groups, slicing everything."""
    weight, transposed, groups = node.args[1], node.args[6], node.args[8]
    yield from _signature(node, "b.->b.", "b")
    if groups == 1:
        yield from _signature(node, f",{'.c.' if transposed else 'c.'},c->.c.", "c")
    elif not transposed and _value(weight).shape[0] == groups == _value(node.args[0]).shape[1]:
        yield from _signature(node, ".c.,c.,c->.c.", "c", 8)


def _convolution_backward(node: fx.Node) -> Patterns:
    """Cuts along the samples, where weight gradients are sums of parts, or along the channels of the result.

    The channels are the input's for the input gradient, and the output's for weight and bias gradients.
    """
    of_input, of_weight, of_bias = argument(node, "output_mask")
    yield from _signature(node, "b.,b.->b.,-,-", "b")
    rows, columns = (".c.", "c.") if node.args[7] else ("c.", ".c.")
    if node.args[9] == 1 and not of_input:
        yield from _signature(node, f".c.,,{rows}->,{rows},c", "c", None if node.args[3] is None else 3)
    elif node.args[9] == 1 and not (of_weight or of_bias):
        yield from _signature(node, f",.c.,{columns}->.c.,,", "c")


def _pool(node: fx.Node) -> Patterns:
    """Cuts along samples and channels, which are independent; indices count within a channel of a sample."""
    rank = next((2 + count for count in (1, 2, 3) if f"{count}d" in str(node.target)), 0)
    batched = all(_value(given).dim() == rank for given in node.args if _is_tensor(given))
    return _alike(node, "bc.", "bc" if batched else "")


def _batch_norm(node: fx.Node) -> Patterns:
    """Cuts along the channels, including the statistics; along the samples only if running statistics are used."""
    yield from _signature(node, ".c.,c,c,c,c->.c.,c,c,c,c", "c")
    # A part's statistics differ from the batch's: the parts would compute another function.
    uses_given = "no_training" in str(node.target) or not argument(node, "training")
    if uses_given and len(node.meta["val"]) <= 3:
        yield from _signature(node, "b.->b.,,", "b")


def _batch_norm_backward(node: fx.Node) -> Patterns:
    """Cuts along the channels; along the samples only if running statistics were used."""
    for text, axis in (".c.,.c.,c,c,c,c,c->.c.,c,c", "c"), ("b.,b.->b.,-,-", "b"):
        read, results = text.split("->")
        # A gradient that is not requested is None, though its stand-in is a tensor.
        asked = (each * wanted for each, wanted in zip(results.split(","), argument(node, "output_mask"), strict=True))
        if axis == "c" or not argument(node, "train"):
            yield from _signature(node, f"{read}->{','.join(asked)}", axis)


def _value(argument: Any) -> Any:
    """The stand-in value of a node, or any other argument itself."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.Tensor)


def _axis(dim: int) -> str:
    return ("batch", "channel")[dim] if dim < 2 else f"dim{dim}"


_POINTWISE = operators(
    "_to_copy hardtanh_backward leaky_relu_backward hardswish_backward hardsigmoid_backward softplus_backward "
    "elu_backward"
)
"""Elementwise ops that torch does not tag as such."""

_POOLS = operators("""
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool2d
_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
""")

_RULES: dict[Any, Callable[[fx.Node], Patterns]] = {
    aten.mm.default: partial(_signature, text="bi,ic->bc", axes="bci"),
    aten.addmm.default: partial(_signature, text="bc,bi,ic->bc", axes="bc"),
    aten.bmm.default: partial(_signature, text="bci,bid->bcd", axes="bcd"),
    aten.baddbmm.default: partial(_signature, text="bcd,bci,bid->bcd", axes="bcd"),
    **dict.fromkeys(operators("_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"), _softmax),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: partial(_attention, tensors=3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: partial(_attention, tensors=6),
    **dict.fromkeys(operators("sum.dim_IntList mean.dim amax amin"), _reduction),
    aten.cat.default: _concatenation,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **dict.fromkeys(_POOLS, _pool),
}


ORIGIN = "dlplacer_origin"
"""Key of a node's meta: the op whose split created it."""


@dataclass(frozen=True)
class Pieces:
    """A tensor as several nodes: slices along a dimension, each with its begin and end, or summands."""

    dim: int
    nodes: Sequence[fx.Node]
    bounds: Sequence[tuple[int, int]]


class PieceTable:
    """The values of a graph that are in pieces; new nodes are inserted before `reader`, each only once."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph, self.reader = graph, graph.output_node()
        self.pieces: dict[fx.Node, Pieces] = {}
        self._made: dict[tuple[Any, ...], fx.Node] = {}

    def insert(self, target: Any, args: tuple[Any, ...], name: str, like: fx.Node, kwargs: Any = None) -> fx.Node:
        """A new call before the reader, with a stand-in as result; its `ORIGIN` is the op of `like`."""
        with self.graph.inserting_before(self.reader):
            node = call_like(self.graph, target, args, like.meta, name, kwargs)
        node.meta.setdefault(ORIGIN, behind_views(like).name)
        return node

    def whole(self, node: fx.Node) -> fx.Node:
        """The node of the whole value: the node itself, or its joined pieces."""
        found = self.pieces.get(node)
        if found is None:
            return node
        if (node,) not in self._made:
            self._made[node,] = self._joined(found.nodes, found.dim, node, "joined")
        return self._made[node,]

    def slice(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        """The node of a slice of a value, taken from its pieces if there are any."""
        key = node, dim, begin, end
        if key not in self._made:
            self._made[key] = self._sliced(node, dim, begin, end)
        return self._made[key]

    def pick(self, user: fx.Node, parts: Sequence[fx.Node], dim: int, bounds: Sequence[tuple[int, int]]) -> None:
        """Replace `user`, which unpacks an output of a split op, by pieces that unpack the output from `parts`."""
        index = picked_output(user)
        picked = [self.insert(operator.getitem, (part, index), f"{part.name}_{index}", user) for part in parts]
        self.pieces[user] = Pieces(dim, picked, bounds)

    def follow(self, node: fx.Node) -> bool:
        """Replace a view of a value in pieces by views of the pieces, which cost nothing; True if possible."""
        source = node.args[0] if node.args else None
        found = self.pieces.get(source) if isinstance(source, fx.Node) else None
        if found is None or found.dim == SUM or node.kwargs or node.target is operator.getitem:
            return False
        made, bounds, dim = [], [], 0
        for number, (part, piece) in enumerate(zip(found.nodes, found.bounds, strict=True)):
            if (view := _view_of_piece(node, found.dim, piece)) is None:
                return False
            dim, ends, args = view
            bounds.append(ends)
            try:
                # A view that is legal for the whole may be illegal for a part, whose strides differ.
                made.append(self.insert(node.target, (part, *args), f"{node.name}_part{number}", node))
            except (RuntimeError, ValueError):
                return False
            if len({tree_leaves(each.meta["val"])[0].dim() for each in (made[-1], node)}) > 1:
                return False
        if isinstance(node.meta["val"], torch.Tensor):
            self.pieces[node] = Pieces(dim, made, bounds)
            return True
        for user in list(node.users):
            self.pick(user, made, dim, bounds)
        return True

    def _sliced(self, node: fx.Node, dim: int, begin: int, end: int) -> fx.Node:
        found, where = self.pieces.get(node), f"dim{dim}_{begin}_{end}"
        if found is None:
            if begin == 0 and end == node.meta["val"].shape[dim]:
                return node
            return self.insert(aten.slice.Tensor, (node, dim, begin, end), f"{node.name}_{where}", node)
        if found.dim != dim:
            return self._joined([self.slice(part, dim, begin, end) for part in found.nodes], found.dim, node, where)
        overlaps = [
            self.slice(part, dim, max(begin, low) - low, min(end, high) - low)
            for part, (low, high) in zip(found.nodes, found.bounds, strict=True)
            if low < end and begin < high
        ]
        return overlaps[0] if len(overlaps) == 1 else self._joined(overlaps, dim, node, where)

    def _joined(self, parts: Sequence[fx.Node], dim: int, like: fx.Node, suffix: str) -> fx.Node:
        """The sum of the parts, or their concatenation in the memory layout of the whole value."""
        if dim == SUM:
            return reduce(lambda sum, part: self.insert(aten.add.Tensor, (sum, part), f"{like.name}_sum", like), parts)
        name, strides = f"{like.name}_{suffix}", like.meta["val"].stride()
        order = sorted(range(len(strides)), key=lambda place: (-strides[place], place))
        # cat may not keep a permuted layout; permuting before cat, and back after it, gives the strides of later views.
        if order == sorted(order):
            return self.insert(aten.cat.default, (list(parts), dim), name, like)
        turned = [self.insert(aten.permute.default, (part, order), f"{part.name}_turned", like) for part in parts]
        joined = self.insert(aten.cat.default, (turned, order.index(dim)), f"{name}_turned", like)
        back = [order.index(place) for place in range(len(order))]
        return self.insert(aten.permute.default, (joined, back), name, like)


def call_like(
    graph: fx.Graph, target: Any, args: tuple[Any, ...], like: Mapping[str, Any], name: str = "", kwargs: Any = None
) -> fx.Node:
    """A new call with a stand-in of its own; its other meta is copied from `like`, the meta of another call."""
    node = graph.create_node("call_function", target, args, dict(kwargs or {}), name or None)
    node.meta = {key: entry for key, entry in like.items() if key not in ("val", "tensor_meta", "desc")}
    node.meta["val"] = stand_in(node)
    return node


def stand_in(node: fx.Node) -> Any:
    """The stand-in result of a call on the stand-ins of its arguments."""
    tensors = [entry.meta["val"] for entry in node.all_input_nodes]
    args, kwargs = stand_ins(node)
    assert callable(node.target)
    if not tensors or not isinstance(tensors[0], torch._subclasses.fake_tensor.FakeTensor):
        return node.target(*args, **kwargs)
    with undisturbed(), torch.no_grad(), tensors[0].fake_mode:
        return node.target(*args, **kwargs)


def _view_of_piece(
    node: fx.Node, dim: int, ends: tuple[int, int]
) -> tuple[int, tuple[int, int], tuple[Any, ...]] | None:
    """A piece's place in a view: dimension, begin and end, and the arguments of its view; None if pieces mix."""
    source, args, made = node.args[0].meta["val"], node.args[1:], node.meta["val"]  # type: ignore[union-attr]
    if node.target in _RESHAPES:
        # A piece stays contiguous if the dimensions before it keep their element count and its ends fall on whole rows.
        before, inner = math.prod(source.shape[:dim]), math.prod(source.shape[dim + 1 :])
        for place in range(made.dim()) if made.numel() else ():
            if math.prod(made.shape[:place]) == before and made.shape[place] > 1:
                (begin, over), (end, more) = (divmod(each * inner, math.prod(made.shape[place + 1 :])) for each in ends)
                shape = [*made.shape[:place], end - begin, *made.shape[place + 1 :]]
                return None if over or more else (place, (begin, end), (shape,))
        return None
    if node.target not in _TURNED:
        return None
    if node.target in _DIVIDED and argument(node, "dim") % source.dim() == dim:
        return None
    # Each dimension has a unique stride, which shows its place in the view.
    probe = torch.empty_strided(source.shape, [2**32 + place for place in range(source.dim())], device="meta")
    assert callable(node.target)
    made = tree_leaves(node.target(probe, *args))[0]
    places = [place for place, stride in enumerate(made.stride()) if stride == 2**32 + dim]
    if not places or made.shape[place := places[0]] != source.shape[dim]:
        return None
    if node.target is aten.expand.default:
        args = ([*made.shape[:place], ends[1] - ends[0], *made.shape[place + 1 :]], *args[1:])
    return place, ends, args


_DIVIDED = operators("slice.Tensor split.Tensor split_with_sizes")
"""Views that take parts along a dimension."""
_RESHAPES = operators("view _unsafe_view reshape")
_TURNED = operators("""
alias detach t transpose.int permute unsqueeze squeeze.dim squeeze.dims select.int slice.Tensor split.Tensor
split_with_sizes unbind.int expand
""")
"""Views that reorder or select the tensor's dimensions."""


_SPLIT = re.compile(r"split:(?P<op>[^:\s]+):(?P<axis>[a-z]+\d*):(?P<parts>[2-9]|[1-9]\d+)")


@dataclass(frozen=True, order=True)
class OpSplit:
    """An op, the axis along which it is cut (one of `patterns_of`), and the number of parts."""

    op: str
    axis: str
    parts: int = 2

    def __str__(self) -> str:
        return f"split:{self.op}:{self.axis}:{self.parts}"


def is_split(rewrite: str) -> bool:
    """True if a rewrite's name denotes a split."""
    return rewrite.startswith("split:")


def parse_splits(rewrites: Sequence[str]) -> tuple[OpSplit, ...]:
    """The splits among the rewrites, in order; CaptureError for an invalid one, or an op that is split twice."""
    splits: dict[str, OpSplit] = {}
    for rewrite in filter(is_split, rewrites):
        match = _SPLIT.fullmatch(rewrite)
        if match is None:
            raise CaptureError(
                f"rewrite {rewrite!r} is not understood; write split:OP:AXIS:PARTS, as in split:mm:batch:2"
            )
        if match["op"] in splits:
            raise CaptureError(f"op {match['op']!r} is split twice; split it once, into more parts")
        splits[match["op"]] = OpSplit(match["op"], match["axis"], int(match["parts"]))
    return tuple(splits.values())


def split_ops(graph: fx.Graph, splits: Sequence[OpSplit]) -> None:
    """Split the named ops; parts with matching cuts exchange slices directly. CaptureError for a wrong op or axis."""
    wanted = {split.op: split for split in splits}
    nodes = list(graph.nodes)
    missing = sorted(wanted.keys() - {node.name for node in nodes if node.op == "call_function"})
    if missing:
        raise CaptureError(f"there is no op {missing[0]!r} to split; use an id of the captured graph")
    table = PieceTable(graph)
    # In graph order: a split op has its pieces in the table before any of its readers is looked at.
    for node in nodes:
        table.reader = node
        if node.name in wanted:
            _split(table, node, wanted[node.name])
        # Unpackings of a split op and views of values in pieces need no change.
        elif node not in table.pieces and not (node.op == "call_function" and table.follow(node)):
            node.args = fx.map_arg(node.args, table.whole)
            node.kwargs = fx.map_arg(dict(node.kwargs), table.whole)
    # Torch treats attention as random, and so keeps it even if it has no readers.
    for node in reversed(nodes):
        if (node.name in wanted or node in table.pieces) and not node.users:
            graph.erase_node(node)


def _split(table: PieceTable, node: fx.Node, split: OpSplit) -> None:
    patterns = patterns_of(node)
    problem = f"op {split.op!r} ({node.target}) cannot be split"
    if (pattern := patterns.get(split.axis)) is None:
        raise CaptureError(
            f"{problem} along {split.axis!r}: its parts would mix; it can be split "
            + (f"along {', '.join(patterns)} only" if patterns else "along no axis")
        )
    if (extent := pattern.extent(node)) < split.parts:
        raise CaptureError(f"{problem} into {split.parts} parts along {split.axis!r}; it has {extent} elements there")

    def read(given: Any, dim: int | None, ends: tuple[int, int]) -> Any:
        return fx.map_arg(given, table.whole if dim is None else lambda node: table.slice(node, dim, *ends))

    # If the dimension does not divide evenly, the first parts are longer by one.
    size, longer = divmod(extent, split.parts)
    ranges = tuple(pairwise(number * size + min(number, longer) for number in range(split.parts + 1)))
    parts = []
    for number, ends in enumerate(ranges):
        args = [read(given, pattern.inputs.get(index), ends) for index, given in enumerate(node.args)]
        if pattern.size_at is not None:
            length = ends[1] - ends[0]
            args[pattern.size_at] = [length] if isinstance(args[pattern.size_at], list) else length
        kwargs = {name: read(given, pattern.named.get(name), ends) for name, given in node.kwargs.items()}
        parts.append(table.insert(node.target, tuple(args), f"{node.name}_part{number}", node, kwargs))
    several = isinstance(node.meta["val"], (tuple, list))
    for user in list(node.users) if several else [node]:
        dim = pattern.outputs[picked_output(user) if several else 0]
        if dim not in (None, SUM) and user.meta["val"].shape[dim] != extent:
            raise CaptureError(
                f"op {user.name!r}: the parts' results do not make up its result of shape "
                f"{list(user.meta['val'].shape)}; please report this model"
            )
        if several:
            table.pick(user, parts if dim is not None else parts[:1], dim or 0, ranges)
        if dim is None:
            user.replace_all_uses_with(table.pieces.pop(user).nodes[0])
        elif not several:
            table.pieces[user] = Pieces(dim, parts, ranges)
