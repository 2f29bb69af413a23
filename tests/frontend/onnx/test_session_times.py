"""Times of nodes that onnxruntime runs as others, or that are oddly named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from dlplacer.frontend.onnx import onnx_graph, read_onnx
from dlplacer.runtime.onnx.run_cut_model import profile_onnx

SHAPE = [1, 16, 64, 64]


def times_of(path: Path, nodes: Sequence[Any]) -> dict[str, float]:
    """Op → profiled seconds in a model from ``x`` to ``y``, both of `SHAPE`."""
    value = helper.make_tensor_value_info
    ends = [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, SHAPE)]
    graph = helper.make_graph(nodes, "timed", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    file = read_onnx(path)
    before = file.model.SerializeToString()
    times = profile_onnx(file, onnx_graph(file), steps=2, warmup=1)["cpu-core"]
    assert file.model.SerializeToString() == before
    return times


@pytest.mark.parametrize(
    "node",
    [helper.make_node("HardSwish", ["a"], ["b"], name="made"), helper.make_node("Mish", ["a"], ["b"], name="made")],
    ids=lambda node: node.op_type,
)
def test_a_node_that_is_run_as_several_has_their_time(tmp_path: Path, node: Any) -> None:
    # Named as onnxruntime names the nodes that it makes itself.
    around = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        node,
        helper.make_node("Mul", ["b", "b"], ["y"], name="Mul_2"),
    ]
    times = times_of(tmp_path / "m.onnx", around)
    # For 65,536 elements no kernel takes less.
    assert times["made"] > 2e-6
    assert times["relu"] > 0
    assert times["Mul_2"] > 0
