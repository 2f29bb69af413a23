"""Whether `solve` should mention a pipeline."""

from planning.pipeline.graphs import chain, devices

from dlplacer.planning.pipeline.pipeline_search import pipeline_hint


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
