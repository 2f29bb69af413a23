"""Splits by hand; `test_stage_memory.py` holds them to brute force."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Link
from dlplacer.planning.pipeline.pipeline_search import Search, plan_pipeline
from dlplacer.planning.pipeline.schedules import order_of
from dlplacer.planning.pipeline.stage_split import StageSplit, best_split

MICRO_BATCHES = 4


def per_type(graph: OpGraph, factor: dict[str, float]) -> OpGraph:
    def times(op: Op) -> dict[str, float]:
        assert isinstance(op.time_s, float | int)
        return {kind: op.time_s * by for kind, by in factor.items()}

    return replace(graph, ops=tuple(replace(op, time_s=times(op)) for op in graph.ops))


def test_a_skip_connection_counts_on_every_border_that_it_crosses() -> None:
    """f0 feeds f1 and f3: cut into four, its 100 bytes cross three borders; f1 and f2 send 4 bytes each."""
    edges = (
        Edge("f0", "f1", 100, tensor="x"),
        Edge("f0", "f3", 100, tensor="x"),
        Edge("f1", "f2", 4),
        Edge("f2", "f3", 4),
    )
    graph = OpGraph(tuple(Op(f"f{at}", "op", 1.0) for at in range(4)), edges)
    plan = plan_pipeline(graph, devices(["x"] * 4), stages=4, micro_batches=1)
    assert [stage.sends_bytes for stage in plan.stages] == [100, 104, 104, 0]
    assert plan.schedule == "forward"


# Weights and gradients: 4 × 20. GPipe holds 4 micro-batches of 40 ÷ 4 bytes: f0 and f1 keep what f1 and f2 read.
def test_memory_limits_the_schedule() -> None:
    graph = chain([1, 1, 1, 1], bytes_=40)
    roomy = plan_pipeline(graph, devices(["x", "x"]), stages=2, micro_batches=4, schedule="gpipe")
    assert [stage.memory_bytes for stage in roomy.stages] == [40 + 80, 40 + 80]
    lean = plan_pipeline(graph, devices(["x", "x"]), stages=2, micro_batches=4, schedule="1f1b")
    assert [stage.memory_bytes for stage in lean.stages] == [40 + 40, 40 + 20]
    limited = devices(["x", "x"], memory_bytes=100)
    assert plan_pipeline(graph, limited, stages=2, micro_batches=4).schedule != "gpipe"
    with pytest.raises(InfeasibleError, match=r"no split into 2 stages fits: .* needs 120 B with 4 of 4 micro-batches"):
        plan_pipeline(graph, limited, stages=2, micro_batches=4, schedule="gpipe")


def split_of(bytes_: int, duplex: str) -> StageSplit:
    """Two equal ops on two devices: 3 s each for a micro-batch, and a link of 10 bytes per second and 0.5 s."""
    topology = replace(devices(["x", "x"]), links=(Link("d0", "d1", 10.0, 0.5, duplex),))
    search = Search(chain([4, 4], bytes_=bytes_), topology)
    problems, _ = search.problems(order_of("1f1b", 2, MICRO_BATCHES), MICRO_BATCHES)
    found = best_split(problems[0])
    assert found is not None
    return found


# Activations of 400 ÷ 4 bytes take 0.5 + 10 s, their gradients as long; 3 s of ops on each device.
def test_a_transfer_counts_both_ways_in_the_sum() -> None:
    split = split_of(400, "full")
    assert split.bottleneck_s == pytest.approx(10.5)
    assert split.sum_s == pytest.approx(3 + 10.5 + 10.5 + 3)


def test_both_ways_of_a_half_duplex_link_are_one_part() -> None:
    split = split_of(400, "half")
    assert split.bottleneck_s == pytest.approx(21.0)
    assert split.sum_s == pytest.approx(27.0)
