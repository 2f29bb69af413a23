"""Whether `solve` should mention a pipeline."""

from planning.pipeline.graphs import chain, devices

import dlplacer as dp
from dlplacer.planning.pipeline.hint import pipeline_hint


def test_a_chain_gains_from_a_pipeline() -> None:
    """8 equal ops of 1 + 2 s on 2 devices: placed one by one 24 s, as a pipeline of 16 micro-batches 12 · 17 ÷ 16."""
    hint = pipeline_hint(chain([1] * 8, bytes_=0), devices(["x", "x"]), makespan_s=24.0)
    assert hint is not None
    assert hint.is_faster
    assert hint.micro_batches == 16
    assert hint.to_dict()["step_s"] == 12 * 17 / 16
    assert str(hint).startswith("a pipeline would be faster: 12.75 s per step against 24 s, with 16 micro-batches on 2")


def test_no_hint_where_it_is_slower() -> None:
    hint = pipeline_hint(chain([1] * 8), devices(["x", "x"]), makespan_s=1.0)
    assert hint is not None
    assert not hint.is_faster


def test_no_hint_for_inference_or_for_one_device() -> None:
    assert pipeline_hint(chain([1, 1], backward=0.0), devices(["x", "x"]), 2.0) is None
    assert pipeline_hint(chain([1, 1]), devices(["x"]), 6.0) is None


def test_no_hint_where_no_pipeline_fits() -> None:
    assert pipeline_hint(chain([1, 1]), devices(["x", "x"], memory_bytes=1), 6.0) is None


def test_a_large_graph_takes_little_time() -> None:
    graph, topology = dp.load_graph("inception_v3-train"), dp.load_topology("dgx1-v100-2gpu")
    hint = pipeline_hint(graph, topology, makespan_s=0.1)
    assert hint is not None
    assert hint.speedup is not None
    assert 1.0 < hint.speedup < 2.0
