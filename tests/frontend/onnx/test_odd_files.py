"""Legal files of unusual make: they run as the whole model does, or are refused with the place and the way out."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend.onnx.models import FLOAT, diamond, save
from onnx import helper, numpy_helper

from dlplacer.core.errors import DlplacerError, FileFormatError
from dlplacer.frontend.onnx import onnx_graph, read_onnx

INFO = helper.make_tensor_value_info
RELU = helper.make_node("Relu", ["x"], ["y"])


def written(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    held: Sequence[Any] = (),
    **more: Any,
) -> Path:
    """Write a model that uses opset 21 and the domain ``acme``."""
    graph = helper.make_graph(nodes, "odd", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("acme", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10, **more).SerializeToString())
    return path


def sparse(path: Path) -> Path:
    values = numpy_helper.from_array(np.ones(2, dtype=np.float32), "sp")
    held = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 3])), [4])
    node = helper.make_node("Add", ["x", "sp"], ["y"])
    written(path, [node], [INFO("x", FLOAT, [4])], [INFO("y", FLOAT, [4])])
    model = onnx.load(str(path))
    model.graph.sparse_initializer.append(held)
    path.write_bytes(model.SerializeToString())
    return path


def of_sequences(path: Path) -> Path:
    listed = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))
    node = helper.make_node("SequenceAt", ["s", "i"], ["y"])
    return written(path, [node], [listed], [INFO("y", FLOAT, [2])], [numpy_helper.from_array(np.int64(0), "i")])


def of_a_foreign_domain(path: Path) -> Path:
    nodes = [helper.make_node("Foo", ["x"], ["a"], domain="acme"), helper.make_node("Relu", ["a"], ["y"])]
    return written(path, nodes, [INFO("x", FLOAT, [4])], [INFO("y", FLOAT, [4])])


def of_a_cycle(path: Path) -> Path:
    nodes = [helper.make_node("Add", ["x", "z"], ["y"], name="add"), helper.make_node("Neg", ["y"], ["z"])]
    return written(path, nodes, [INFO("x", FLOAT, [4])], [INFO("z", FLOAT, [4])])


def of_an_input_without_shape(path: Path) -> Path:
    return written(path, [RELU], [INFO("x", FLOAT, None)], [INFO("y", FLOAT, None)])


def of_a_future_opset(path: Path) -> Path:
    return save(path, [RELU], {"x": [4]}, {"y": [4]}, opset=999)


REFUSED = {
    "cycle": (of_a_cycle, "input 'z' of node: name: add OpType: Add is not output of any previous nodes"),
    "input without shape": (of_an_input_without_shape, "shape"),
    "future opset": (of_a_future_opset, r"opset 999 is newer than \d+, the newest of onnx .*: update onnx"),
    "sparse initializer": (sparse, "initializer 'sp' is sparse, which no plan can place; store it dense"),
    "sequence input": (of_sequences, "'s', an input, has type sequence, which has no size"),
    "foreign domain": (
        of_a_foreign_domain,
        "'a', an output of Foo .* ops of domain 'acme'; give its shape in value_info",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_planned_says_why(tmp_path: Path, name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(FileFormatError, match=message):
        onnx_graph(read_onnx(build(tmp_path / "m.onnx")))


def test_mutated_files_never_end_in_a_traceback(tmp_path: Path) -> None:
    draw = random.Random(0)
    content = diamond(tmp_path / "d.onnx").read_bytes()
    # The weights, which may hold anything, are most of the file: mutate what describes them.
    described = [place for place in range(len(content)) if place < 700 or place > len(content) - 400]
    path, refused = tmp_path / "mutated.onnx", 0
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.choice(described)] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            onnx_graph(read_onnx(path))
        except DlplacerError:
            refused += 1
    assert 0 < refused < 150
