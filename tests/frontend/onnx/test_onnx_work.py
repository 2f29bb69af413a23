"""Work of nodes by arithmetic done by hand, of those too that run others: branches, loops, scans."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.frontend.onnx import onnx_graph, read_onnx

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
INFO, NODE = helper.make_tensor_value_info, helper.make_node

# Every product is of 3 x 4 with 4 x 4: 2·3·4·4 = 96 FLOPs; it moves 48 + 64 + 48 = 160 bytes.
SQUARE = numpy_helper.from_array(np.ones((4, 4), np.float32), "sq")
X, Y = INFO("x", FLOAT, [3, 4]), INFO("y", FLOAT, [3, 4])


def read(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (X,),
    outputs: Sequence[Any] = (Y,),
    held: Sequence[Any] = (SQUARE,),
    functions: Sequence[Any] = (),
    opset: int = 17,
    between: Sequence[Any] = (),
) -> OpGraph:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held, value_info=between)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)
    onnx.save(model, str(path / "m.onnx"))
    return onnx_graph(read_onnx(path / "m.onnx"))


Value = tuple[str, int, list[int]]
UINT8 = TensorProto.UINT8


def op_of(path: Path, node: Any, inputs: Sequence[Value], output: list[int], kind: int = FLOAT, opset: int = 19) -> Op:
    """The op that a node becomes in a model of its own."""
    node.name = "node"
    ends = [INFO(*value) for value in inputs], [INFO("y", kind, output)]
    return read(path, [node], *ends, held=(), opset=opset).op("node")


def test_a_function_of_the_file_is_planned_as_its_body(tmp_path: Path) -> None:
    body = [NODE("MatMul", ["p", "w"], ["q"]), NODE("MatMul", ["q", "w"], ["r"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("acme", "Twice", ["p", "w"], ["r"], body, opsets)
    graph = read(tmp_path, [NODE("Twice", ["x", "sq"], ["y"], domain="acme")], functions=[function])
    assert [op.flops for op in graph.ops if op.kind == "onnx.MatMul"] == [96, 96]


def branch(name: str, products: int, weight: str = "sq", held: Sequence[Any] = ()) -> Any:
    """A graph that multiplies ``x`` as often with a weight, and then returns its copy."""
    values = ["x", *(f"{name}{place}" for place in range(products))]
    nodes = [NODE("MatMul", [one, weight], [other]) for one, other in pairwise(values)]
    nodes.append(NODE("Neg", [values[-1]], [name]))
    return helper.make_graph(nodes, name, [], [INFO(name, FLOAT, [3, 4])], held)


def test_the_branch_with_more_work_counts_and_both_hold_their_weights(tmp_path: Path) -> None:
    own = numpy_helper.from_array(np.ones((4, 4), np.float32), "own")
    constant = NODE("Constant", [], ["spare"], value=numpy_helper.from_array(np.ones(6, np.float32)))
    right = branch("e", 1)
    right.node.append(constant)
    node = NODE("If", ["flag"], ["y"], name="if", then_branch=branch("t", 2, "own", [own]), else_branch=right)
    graph = read(tmp_path, [node], [X, INFO("flag", BOOL, [])])
    op = graph.op("if")
    assert op.flops == 2 * 96
    assert op.bytes_accessed == 2 * 160 + 96
    assert op.weight_bytes == 64 + 24
    assert graph.op("weight:sq").weight_bytes == 64


def loop(stacks: bool) -> Any:
    """A loop's body: a product of the carried value; its result is carried on and, if asked for, stacked."""
    nodes = [NODE("MatMul", ["a", "sq"], ["b"]), NODE("Identity", ["c"], ["d"])]
    outputs = [INFO("d", BOOL, []), INFO("b", FLOAT, [3, 4])]
    if stacks:
        nodes.append(NODE("Identity", ["b"], ["s"]))
        outputs.append(INFO("s", FLOAT, [3, 4]))
    inputs = [INFO("i", INT64, []), INFO("c", BOOL, []), INFO("a", FLOAT, [3, 4])]
    return helper.make_graph(nodes, "loop", inputs, outputs)


@pytest.mark.parametrize(("most", "rounds"), [(6, 6), (0, 0), (2**63 - 1, 1), (None, 1)])
def test_a_loop_counts_its_rounds_where_the_file_tells_them(tmp_path: Path, most: int | None, rounds: int) -> None:
    held = [SQUARE] if most is None else [SQUARE, numpy_helper.from_array(np.int64(most), "most")]
    inputs = [X, INFO("most", INT64, [])] if most is None else [X]
    node = NODE("Loop", ["most", "", "x"], ["y"], name="loop", body=loop(False))
    op = read(tmp_path, [node], inputs, held=held).op("loop")
    assert op.flops == rounds * 96
    assert op.bytes_accessed == max(rounds * 160, 8 + 48 + 48)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scan_runs_along_its_axis(tmp_path: Path, axis: int) -> None:
    nodes = [NODE("MatMul", ["a", "sq"], ["b"]), NODE("Add", ["b", "row"], ["c"])]
    row = INFO("row", FLOAT, [3, 4])
    body = helper.make_graph(nodes, "scan", [INFO("a", FLOAT, [3, 4]), row], [INFO("c", FLOAT, [3, 4])])
    rows = [3, 4]
    rows.insert(axis if axis >= 0 else 2, 7)
    node = NODE("Scan", ["x", "rows"], ["y"], name="scan", body=body, num_scan_inputs=1, scan_input_axes=[axis])
    op = read(tmp_path, [node], [X, INFO("rows", FLOAT, rows)]).op("scan")
    assert op.flops == 7 * 96
    assert op.bytes_accessed == 7 * (160 + 3 * 48)


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
