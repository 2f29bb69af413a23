"""Captures of models that are not small: nothing is allocated, and it does not take long."""

import time
from collections import Counter

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

import dlplacer
from dlplacer.files.load import load_graph
from dlplacer.frontend import capture
from dlplacer.models import inception_v3

pytestmark = pytest.mark.xdist_group("capture scale")  # Inception-V3 is captured once


@pytest.fixture(scope="module")
def inception() -> tuple[dlplacer.OpGraph, float]:
    with FakeTensorMode():
        job = inception_v3(batch_size=32)
    begin = time.process_time()
    graph = capture(job)
    return graph, time.process_time() - begin


def test_inception_v3_has_its_ops(inception: tuple[dlplacer.OpGraph, float]) -> None:
    graph, cpu_s = inception
    kinds = Counter(op.kind for op in graph.ops)
    assert kinds["aten.convolution"] == 94
    assert kinds["aten._native_batch_norm_legit_functional"] == kinds["aten.native_batch_norm_backward"] == 94
    # All but the first convolution have an input gradient to split off: 93·2 + 1.
    assert kinds["aten.convolution_backward"] == 187
    assert kinds["parameter"] == kinds["gradient"] == 3 * 94 + 2
    assert kinds["buffer"] == kinds["mutation"] == 3 * 94
    assert cpu_s < 150  # takes about 5 s


def test_the_shipped_graph_of_inception_v3_is_what_is_captured(inception: tuple[dlplacer.OpGraph, float]) -> None:
    shipped = load_graph("inception_v3-train")
    assert shipped.structure_sha256 == inception[0].structure_sha256
