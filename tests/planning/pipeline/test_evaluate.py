"""A split with all its numbers, by hand."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline


def with_updates(graph: OpGraph, times_s: dict[str, float]) -> OpGraph:
    """The graph with an optimizer op behind every backward op."""
    ops = tuple(Op(f"u{at}", "sgd", time_s, phase="optimizer", colocate=f"g{at}") for at, time_s in times_s.items())
    edges = tuple(Edge(f"b{at}", f"u{at}", 10) for at in times_s)
    return replace(graph, ops=graph.ops + ops, edges=graph.edges + edges)


# Two stages of forward 2 s and backward 4 s, one micro-batch, nothing sent: 12 s. The first stage, which ends last,
# then updates its weight in 3 s; the second updates in 3.5 s while the first still runs backward.
def test_every_stage_updates_its_weights_after_its_last_backward_op() -> None:
    graph = chain([2, 2], bytes_=0)
    settings = {"stages": 2, "micro_batches": 1, "schedule": "gpipe"}
    plain = plan_pipeline(graph, devices(["x", "x"]), **settings)
    updated = plan_pipeline(with_updates(graph, {"0": 3.0, "1": 3.5}), devices(["x", "x"]), **settings)
    assert [(stage.forward_s, stage.backward_s, stage.update_s) for stage in updated.stages] == [
        (2.0, 4.0, 3.0),
        (2.0, 4.0, 3.5),
    ]
    assert plain.timeline.step_s == pytest.approx(12)
    assert updated.timeline.step_s == pytest.approx(15)
