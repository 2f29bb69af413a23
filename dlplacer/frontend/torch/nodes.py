"""Properties of a traced node: whether it is a view or random, its arguments as JSON, its FLOPs and bytes."""

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dlplacer.core.op import TensorSpec
from dlplacer.frontend.torch.executable import Value
from dlplacer.frontend.torch.tracing.kernels import LSTM_BACKWARD, LSTM_FORWARD

aten = torch.ops.aten


def operators(names: str) -> frozenset[Any]:
    """The ATen operators with these names, ``packet`` or ``packet.overload``, separated by spaces."""
    parts = (name.partition(".") for name in names.split())
    return frozenset(getattr(getattr(aten, packet), overload or "default") for packet, _, overload in parts)


def is_folded(node: fx.Node) -> bool:
    """True if a node costs nothing: tuple unpacking, or a view of its first argument."""
    return node.target is operator.getitem or is_view(node)


def is_view(node: fx.Node) -> bool:
    """True if a call returns its first argument's storage with another shape."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    # An unsafe view shares memory too, though its schema declares no alias.
    aliases = [result.alias_info for result in node.target._schema.returns]
    is_declared = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return is_declared or node.target is aten._unsafe_view.default


def behind_views(node: fx.Node) -> fx.Node:
    """The call that computes a value, found through tuple unpacking and views."""
    while is_folded(node):
        node = node.all_input_nodes[0]
    return node


def picked_output(node: fx.Node) -> int:
    """The output index that a tuple unpacking selects."""
    return int(node.args[1])  # type: ignore[arg-type]


def is_random(node: fx.Node) -> bool:
    """True if a call draws random numbers; attention does only with dropout."""
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = [each.name for each in node.target._schema.arguments]
    return "dropout_p" not in arguments or argument(node, "dropout_p") != 0.0


def argument(node: fx.Node, name: str) -> Any:
    """An argument of an ATen call by its name in the schema: as given, or its default."""
    schema = node.target._schema  # type: ignore[union-attr]
    index, declared = next((index, each) for index, each in enumerate(schema.arguments) if each.name == name)
    return node.args[index] if index < len(node.args) else node.kwargs.get(name, declared.default_value)


def is_check(node: fx.Node) -> bool:
    """True if a call only checks facts known at capture, or the values of an ``assert`` in the model."""
    return node.target in _CHECKS


_CHECKS = operators(
    "_assert_tensor_metadata _assert_async _assert_async.msg _functional_assert_async.msg _linalg_check_errors"
)


def strides_to_keep(node: fx.Node) -> tuple[int, ...] | None:
    """The traced strides of a result, if a kernel might return other strides; None if only one layout is possible.

    Later views are traced for these strides; torch's stand-ins (pytorch#192668) and devices may have other strides.
    """
    value = node.meta.get("val")
    if is_view(node) or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    # On every device, results of products and of pointwise kernels on contiguous arguments are contiguous.
    read = [one for each in node.all_input_nodes if isinstance(one := each.meta.get("val"), torch.Tensor)]
    is_pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    follows = is_pointwise and all(each.is_contiguous() and 0 not in each.stride() for each in read)
    if value.is_contiguous() and (follows or node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default)):
        return None
    wide = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
    # Only expanded views have a stride of 0.
    return tuple(value.stride()) if len(wide) > 1 and value.numel() and all(wide) else None


def kind_of(node: fx.Node) -> str:
    """The op's name as torch prints it, without its overload: ``aten.convolution``."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).rpartition(".")[0]
    return str(getattr(node.target, "__name__", node.target))


def output_specs(value: Any) -> tuple[TensorSpec, ...]:
    """The output specs of a call, from its stand-in value; an output that is not computed has 0 bytes."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(
        TensorSpec(tuple(entry.shape), str(entry.dtype).removeprefix("torch."), entry.numel() * entry.element_size())
        if isinstance(entry, torch.Tensor)
        else TensorSpec((), "none", 0)
        for entry in values
    )


def stand_ins(node: fx.Node) -> Any:
    """The positional and keyword arguments of a call, with every node replaced by its stand-in value."""
    return fx.map_arg((node.args, dict(node.kwargs)), lambda read: read.meta["val"])


def written(value: Any) -> Any:
    """Arguments as JSON: tensors as ``{"tensor": name}``, dtypes and devices by name."""
    if isinstance(value, Value):
        return {"tensor": value.name}
    if isinstance(value, (list, tuple)):
        return [written(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): written(entry) for key, entry in value.items()}
    # JSON has no infinities, which attention masks contain.
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def writes_in_python(node: fx.Node) -> bool:
    """True if a call that Dynamo traced changes a tensor in place, judged by its name."""
    name = name_in_python(node)
    return node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__")) or "out" in node.kwargs


def name_in_python(node: fx.Node) -> str:
    """Name of the function or method that a node calls; "" if there is none."""
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))


_IN_PLACE = {getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ipow", "iand", "ior", "setitem")}


def flops_of(node: fx.Node) -> int:
    """FLOPs of a call; 0 for ops that only move or touch elements, whose bytes determine their time.

    This fills gaps of torch's registry, which lacks the CPU attention kernel, products with a vector and grouped
    products, and ignores the groups of a convolution's backward. Linear algebra still counts 0.
    """
    args, kwargs = stand_ins(node)
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet)
    if name in _PRODUCTS:
        factor, *places = _PRODUCTS[name]
        left, right = (args[place].shape for place in places)
        # A grouped product multiplies every row by one of several matrices.
        batch = right[0] if len(left) == len(right) == 3 else 1
        rows, columns = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
        return int(factor * 2 * batch * rows * left[-1] * columns)
    # torch's formula for the weight gradient ignores groups: it counts a depthwise convolution once per channel.
    if packet is aten.convolution_backward:
        positions, mask = args[1].shape if args[7] else args[0].shape, args[10]
        forward = 2 * positions[0] * math.prod(positions[2:]) * math.prod(args[2].shape)
        return int(forward) * (int(mask[0]) + int(mask[1]))
    # A capture on the CPU uses this attention kernel, which the registry lacks (pytorch#195460).
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # type: ignore[no-untyped-call]
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))  # type: ignore[no-untyped-call]
    if node.target in (LSTM_FORWARD, LSTM_BACKWARD):
        # Four gates, each as wide as the output, computed from the input and from the state.
        is_forward = node.target is LSTM_FORWARD
        output = node.meta["val"][0] if is_forward else args[7]
        return int((2 if is_forward else 4) * output.numel() * 4 * (args[0].shape[-1] + output.shape[-1]))
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
    return 0


_PRODUCTS = {
    **dict.fromkeys(("aten.dot", "aten.vdot", "aten.mv", "aten._grouped_mm"), (1, 0, 1)),
    **dict.fromkeys(("aten.addmv", "aten.addbmm"), (1, 1, 2)),
    "transformers.grouped_mm_fallback": (1, 0, 1),
    "transformers.grouped_mm_fallback_backward": (2, 0, 1),
}
"""Op → its number of products, and the indices of the arguments that are their factors."""


def bytes_of(node: fx.Node) -> int:
    """Bytes that a call reads and writes, each tensor once; a lookup counts only the rows that it reads."""
    value = node.meta["val"]
    results = value if isinstance(value, (tuple, list)) else (value,)
    written = sum(result.numel() * result.element_size() for result in results if isinstance(result, torch.Tensor))
    name = str(getattr(node.target, "overloadpacket", None))
    if name in _SHAPED_LIKE:
        return written
    sizes = {read: tensor_bytes(read.meta["val"]) for read in node.all_input_nodes}
    if name in _LOOKUPS:
        table, places = node.args[0], node.args[1]
        assert isinstance(table, fx.Node)
        rows = written
        if isinstance(places, fx.Node) and name in _BAGS:
            entry = table.meta["val"]
            rows = places.meta["val"].numel() * math.prod(entry.shape[1:]) * entry.element_size()
        sizes[table] = min(sizes[table], rows)
    return written + sum(sizes.values())


_SHAPED_LIKE = {f"aten.{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")}
_SHAPED_LIKE |= {f"aten.new_{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full")}
"""Ops that read only the shape or dtype of their first argument, and no element."""

_BAGS = frozenset(("aten._embedding_bag", "aten._embedding_bag_forward_only"))
_LOOKUPS = _BAGS | {"aten.embedding", "aten.gather", "aten.index", "aten.index_select", "aten.take"}
"""Ops that read as much of their first argument as they return; sums of bags read all rows that they add."""


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes sent in a transfer of a tensor: an expanded dimension counts once."""
    sizes = (size for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if stride != 0)
    return int(math.prod(sizes)) * tensor.element_size() if tensor.numel() else 0
