"""A pipeline expanded to ops: by hand, on graphs whose micro-batches are made by hand."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.planning.pipeline.micro_batch_names import copy_id
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.placed_pipeline import placed_pipeline
from dlplacer.planning.pipeline.schedules import SCHEDULES


def in_copies(graph: OpGraph, count: int) -> OpGraph:
    """A graph's ops once for each micro-batch, in equal shares of their time; weights once."""

    def times(op: Op) -> float:
        assert isinstance(op.time_s, float | int)
        return op.time_s / count

    shared = [op for op in graph.ops if op.kind == "parameter"]
    ops, edges = list(shared), []
    for number in range(count):
        names = {op.id: op.id if op in shared else copy_id(op.id, number) for op in graph.ops}
        ops += [replace(op, id=names[op.id], time_s=times(op), origin=(op.id,)) for op in graph.ops if op not in shared]
        edges += [
            Edge(names[edge.source], names[edge.target], edge.bytes // count, tensor=names[edge.source])
            for edge in graph.edges
        ]
    return OpGraph(tuple(ops), tuple(edges), name=graph.name)


def planned(schedule: str, times_s: list[int], count: int, capacity: int | None = None) -> tuple[Plan, float]:
    """The plan, and the step time that the pipeline's own player finds."""
    graph, topology = chain(times_s, bytes_=0), devices(["x", "x"], memory_bytes=capacity)
    pipeline = plan_pipeline(graph, devices(["x", "x"]), stages=2, micro_batches=count, schedule=schedule)
    return placed_pipeline(pipeline, in_copies(graph, count), topology), pipeline.step_s


# A transfer of no bytes takes the latency of 0.5 s in a plan, and none in the pipeline's own account.
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ops_take_as_long_as_the_schedule_of_their_actions(schedule: str) -> None:
    plan, step_s = planned(schedule, [10, 20, 30, 40, 20], 4)
    assert not violations(plan)
    assert step_s <= plan.makespan_s <= step_s + 0.5 * 2 * 4


# Of stage 1 only b1 leads to stage 0; in the zero-bubble order what is left waits for the rank's W action.
def test_weight_gradients_wait_where_the_schedule_lets_them() -> None:
    graph = chain([1, 1], bytes_=0)
    weights = [Op(f"d{at}", "mm", 2.0, phase="backward", colocate=f"g{at}") for at in (0, 1)]
    edges = (Edge("f0", "d1", 0, tensor="f0"), Edge("b1", "d1", 0, tensor="b1"), Edge("b0", "d0", 0, tensor="b0"))
    graph = OpGraph((*graph.ops, *weights), (*graph.edges, *edges), name="with weight gradients")
    pipeline = plan_pipeline(graph, devices(["x", "x"]), stages=2, micro_batches=4, schedule="zero-bubble")
    plan = placed_pipeline(pipeline, in_copies(graph, 4), devices(["x", "x"]))
    assert not violations(plan)
    for rank, stage in enumerate(pipeline.stages):
        ran = [op for op in plan.order[stage.device] if not op.startswith("w")]
        kinds = {"f": "F", "b": "I", "d": "W"} if rank else {"f": "F", "b": "W", "d": ""}
        actions = [f"{rank}{kinds[op[0]]}{op[-1]}" for op in ran if kinds[op[0]]]
        assert actions == [str(action) for action in pipeline.order[rank] if rank or action.kind != "I"]
