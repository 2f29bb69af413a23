"""Ops of domain com.microsoft: shapes and work, computed by hand."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.onnx import onnx_graph, read_onnx

pytest.importorskip("onnxruntime")
DOMAIN = "com.microsoft"


def graph_of(
    path: Path,
    nodes: list[tuple[str, list[str], list[str], dict[str, object]]],
    inputs: dict[str, list[int]],
    weights: dict[str, list[int]],
) -> OpGraph:
    """The graph of nodes whose last output, through a Relu, is the model's; its shape is left to inference."""
    made = [
        helper.make_node(op, read, written, name=op, domain=DOMAIN, **settings) for op, read, written, settings in nodes
    ]
    made.append(helper.make_node("Relu", [nodes[-1][2][0]], ["y"], name="relu"))
    model = helper.make_model(
        helper.make_graph(
            made,
            "contrib",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)],
        ir_version=9,
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for size in [f"d{place}" for place in range(len(inputs[next(iter(inputs))]))]:
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_param=size)
    onnx.save(model, path)
    return onnx_graph(read_onnx(path))


@pytest.mark.parametrize(
    ("op", "settings", "inputs", "weights", "shape", "flops"),
    [
        # 2 × 32 rows × 64 × 192, then scores and sums: 2 × 2 × 32 × 64 × 16 keys.
        ("Attention", {"num_heads": 4}, {"x": [2, 16, 64]}, {"w": [64, 192], "b": [192]}, (2, 16, 64), 917_504),
        ("FusedConv", {"activation": "Relu"}, {"x": [2, 3, 8, 8]}, {"w": [4, 3, 3, 3]}, (2, 4, 6, 6), 288 * 2 * 27),
        # 32 queries × 24 keys × 64, twice.
        (
            "MultiHeadAttention",
            {"num_heads": 4},
            {"q": [2, 16, 64], "k": [2, 24, 64], "v": [2, 24, 64]},
            {},
            (2, 16, 64),
            4 * 2 * 16 * 24 * 64,
        ),
    ],
)
def test_shapes_and_work_of_contrib_ops(
    tmp_path: Path,
    op: str,
    settings: dict[str, object],
    inputs: dict[str, list[int]],
    weights: dict[str, list[int]],
    shape: tuple[int, ...],
    flops: int,
) -> None:
    graph = graph_of(tmp_path / "m.onnx", [(op, [*inputs, *weights], ["a"], settings)], inputs, weights)
    found = graph.op(op)
    assert (found.outputs[0].shape, found.flops) == (shape, flops)
    assert graph.op("relu").outputs[0].shape == shape
