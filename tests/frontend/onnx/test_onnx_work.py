"""Work of single nodes: what is counted of which op, by arithmetic done by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from dlplacer.core.op import Op
from dlplacer.frontend.onnx import onnx_graph, read_onnx

FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
Value = tuple[str, int, list[int]]


def op_of(
    folder: Path,
    node: Any,
    inputs: Sequence[Value],
    output: list[int],
    kind: int = FLOAT,
    before: Sequence[Any] = (),
    opset: int = 19,
) -> Op:
    """The op that a node becomes in a model of its own, which also knows a domain ``acme``."""
    node.name = "node"
    graph = helper.make_graph(
        [*before, node],
        "one",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info("y", kind, output)],
        [helper.make_tensor("k", FLOAT, [2, 2], [1.0] * 4)],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(folder / "m.onnx"))
    return onnx_graph(read_onnx(folder / "m.onnx")).op("node")


def test_quantized_products_compute_as_much_as_others(tmp_path: Path) -> None:
    scale: list[Value] = [("s", FLOAT, []), ("z", UINT8, [])]
    convolution = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], pads=[1, 1, 1, 1])
    inputs = [("x", UINT8, [2, 4, 8, 8]), ("w", UINT8, [6, 4, 3, 3]), *scale]
    assert op_of(tmp_path, convolution, inputs, [2, 6, 8, 8], UINT8).flops == 2 * (2 * 6 * 8 * 8) * (4 * 9)
    product = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
    inputs = [("x", UINT8, [3, 5]), ("w", UINT8, [5, 7]), *scale]
    assert op_of(tmp_path, product, inputs, [3, 7], UINT8).flops == 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("equation", "shapes", "output", "flops"),
    [
        ("ij,jk->ik", ([2, 3], [3, 5]), [2, 5], 2 * 2 * 3 * 5),
        ("ij, jk", ([2, 3], [3, 5]), [2, 5], 2 * 2 * 3 * 5),
        ("bhqd,bhkd->bhqk", ([2, 3, 4, 5], [2, 3, 6, 5]), [2, 3, 4, 6], 2 * 2 * 3 * 4 * 6 * 5),
        ("i,j->ij", ([2], [3]), [2, 3], 0),
        ("ij->ji", ([2, 3],), [3, 2], 0),
    ],
)
def test_an_einsum_of_two_tensors_is_a_product(
    tmp_path: Path, equation: str, shapes: tuple[list[int], ...], output: list[int], flops: int
) -> None:
    names = ["x", "w"][: len(shapes)]
    inputs = [(name, FLOAT, shape) for name, shape in zip(names, shapes, strict=True)]
    assert op_of(tmp_path, helper.make_node("Einsum", names, ["y"], equation=equation), inputs, output).flops == flops


def test_a_tensor_that_is_read_twice_counts_once_and_a_shape_reads_no_elements(tmp_path: Path) -> None:
    x = [("x", FLOAT, [4, 6])]
    assert op_of(tmp_path, helper.make_node("Mul", ["x", "x"], ["y"]), x, [4, 6]).bytes_accessed == 2 * 96
    shape = op_of(tmp_path, helper.make_node("Shape", ["x"], ["y"]), x, [2], TensorProto.INT64)
    assert shape.bytes_accessed == 2 * 8


# 8 heads of 2 sequences: 5 queries, 7 keys and 3 before them, of 16 elements, values of 12.
@pytest.mark.parametrize(
    ("shapes", "output", "options"),
    [
        (([2, 8, 5, 16], [2, 4, 7, 16], [2, 4, 7, 12]), [2, 8, 5, 12], {}),
        (([2, 5, 128], [2, 7, 64], [2, 7, 48]), [2, 5, 96], {"q_num_heads": 8, "kv_num_heads": 4}),
    ],
)
def test_attention_counts_scores_and_sums(
    tmp_path: Path, shapes: Sequence[list[int]], output: list[int], options: dict[str, int]
) -> None:
    inputs = [(name, FLOAT, shape) for name, shape in zip(("q", "keys", "v"), shapes, strict=True)]
    node = helper.make_node("Attention", ["q", "keys", "v"], ["y"], **options)
    assert op_of(tmp_path, node, inputs, output, opset=23).flops == 2 * (2 * 8 * 5 * 7) * (16 + 12)
    past = [("p", FLOAT, [2, 4, 3, 16]), ("r", FLOAT, [2, 4, 3, 12])]
    node = helper.make_node("Attention", ["q", "keys", "v", "", "p", "r"], ["y", "pk", "pv"], **options)
    assert op_of(tmp_path, node, [*inputs, *past], output, opset=23).flops == 2 * (2 * 8 * 5 * 10) * (16 + 12)
