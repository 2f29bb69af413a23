"""Small ONNX models made by hand."""

import random
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def save(path: Path, nodes, inputs, outputs, initializers=(), opset: int = 17, ir_version: int = 8) -> Path:
    """Write a model; inputs and outputs are name → shape."""
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.save(model, str(path))
    return path


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def diamond(path: Path, batch: int | str = 2) -> Path:
    """Two branches behind a convolution, added and flattened into a matrix product."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="left"),
        helper.make_node("Sigmoid", ["a"], ["c"], name="right"),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"], name="flat"),
        helper.make_node("Gemm", ["e", "v"], ["y"], name="gemm"),
    ]
    held = {"w": weights(1, 4, 3, 3, 3), "v": weights(2, 4 * 8 * 8, 5)}
    return save(path, nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 5]}, held)


def random_model(path: Path, seed: int, size: int = 14) -> Path:
    """A random graph of elementwise ops, matrix products, splits and concatenations; some values are constant."""
    draw = random.Random(seed)
    values, nodes = ["x", "u"], []
    held = {"k": weights(seed, 6, 6), "one": np.ones((6, 6), dtype=np.float32)}
    constant = ["k", "one"]
    for number in range(size):
        kind = draw.choice(("Add", "Mul", "Relu", "MatMul", "Split", "Fold"))
        name = f"v{number}"
        if kind == "Fold":
            nodes.append(helper.make_node("Add", draw.choices(constant, k=2), [name], name=f"n{number}"))
            constant.append(name)
        elif kind == "Split":
            halves = [f"{name}a", f"{name}b"]
            nodes.append(helper.make_node("Split", [draw.choice(values)], halves, axis=0, num_outputs=2))
            nodes.append(helper.make_node("Concat", draw.sample(halves, 2), [name], axis=0))
            values.append(name)
        elif kind == "Relu":
            nodes.append(helper.make_node("Relu", [draw.choice(values)], [name]))
            values.append(name)
        else:
            nodes.append(helper.make_node(kind, [draw.choice(values), draw.choice(values + constant)], [name]))
            values.append(name)
    made = [name for name in values if name not in ("x", "u")] or ["x"]
    outputs = {name: [6, 6] for name in draw.sample(made, min(3, len(made)))}
    if made == ["x"]:
        nodes.append(helper.make_node("Identity", ["x"], ["out"]))
        outputs = {"out": [6, 6]}
    return save(path, nodes, {"x": [6, 6], "u": [6, 6]}, outputs, held, opset=18)
