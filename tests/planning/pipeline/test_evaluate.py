"""A split with all its numbers, by hand."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.core.errors import InfeasibleError
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


def tied(graph: OpGraph, reader: str, gradient: str) -> OpGraph:
    """The graph in which another module, op `reader`, reads weight w0 too, of whose gradient `gradient` is a part."""
    ops = tuple(replace(op, module=op.id) if op.id in ("f0", reader) else op for op in graph.ops)
    ops = tuple(replace(op, colocate="g0") if op.id == "w0" else op for op in ops)
    summed = Op("sum", "add", 0.0, phase="backward", module="f0")
    end = Op("w0.grad", "gradient", 0.0, phase="backward", colocate="g0")
    more = (Edge("w0", reader, 10), Edge(gradient, "sum", 10), Edge("b0", "sum", 10), Edge("sum", "w0.grad", 10))
    return replace(graph, ops=(*ops, summed, end), edges=(*graph.edges, *more))


# Stages of forward 2 s and backward 4 s on a link of 10 B/s and 0.5 s. The weight of 10 bytes reaches the second stage
# after 1.5 s, before its first micro-batch at 2 s; its part of the gradient is back 1.5 s behind the second stage's
# last backward op, at 8 s, while the first stage works until 12 s. On a link of 2 B/s both take 5.5 s: the second
# stage begins at 5.5 s and ends at 11.5 s; the first ends at 15.5 s, and the gradient is back at 17 s.
@pytest.mark.parametrize(("rate", "step_s"), [(10.0, 12.0), (2.0, 17.0)])
def test_a_tied_weight_crosses_between_its_stages_once_a_step(rate: float, step_s: float) -> None:
    graph = chain([2, 2], bytes_=0)
    plan = plan_pipeline(
        tied(graph, "f1", "b1"), devices(["x", "x"], rate), stages=2, micro_batches=1, schedule="gpipe"
    )
    untied = plan_pipeline(graph, devices(["x", "x"], rate), stages=2, micro_batches=1, schedule="gpipe")
    assert [stage.ops for stage in plan.stages] == [stage.ops for stage in untied.stages]
    assert plan.timeline.step_s == pytest.approx(step_s)
    assert plan.stages[1].memory_bytes == untied.stages[1].memory_bytes + 20
    assert not plan.warnings


# The buffer of 10 bytes that f0 and f1 read reaches the second stage within its first 2 s of waiting; no gradient comes
# back. One that the step writes to holds both ops in one stage, of which no split can then be made.
def test_a_buffer_that_no_op_writes_is_copied_to_the_stages_that_read_it() -> None:
    graph = tied(chain([2, 2], bytes_=0), "f1", "b1")
    dropped = {"sum", "w0.grad"}
    ops = (replace(op, kind="buffer", gradient_bytes=0) if op.id == "w0" else op for op in graph.ops)
    edges = tuple(edge for edge in graph.edges if not dropped & {edge.source, edge.target})
    read_only = replace(graph, ops=tuple(op for op in ops if op.id not in dropped), edges=edges)
    machine, request = devices(["x", "x"], 10.0), {"stages": 2, "micro_batches": 1, "schedule": "gpipe"}
    plan = plan_pipeline(read_only, machine, **request)
    untied = plan_pipeline(chain([2, 2], bytes_=0), machine, **request)
    assert plan.timeline.step_s == pytest.approx(12)
    assert plan.stages[1].memory_bytes == untied.stages[1].memory_bytes + 10
    new = Op("w0.new", "mutation", 0.0, phase="forward", colocate="g0")
    written = replace(read_only, ops=(*read_only.ops, new), edges=(*edges, Edge("f0", "w0.new", 10)))
    with pytest.raises(InfeasibleError, match="use fewer stages"):
        plan_pipeline(written, machine, **request)
