"""Where the inference graph of a training plan runs."""

from dataclasses import replace

import pytest
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import random_plan

from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import Op, OpGraph
from dlplacer.frontend import Job, capture
from dlplacer.runtime.placed.match import order_at_other_shapes, order_of_inference


def homes(order: dict[str, list[str]]) -> dict[str, str]:
    return {op: device for device, ops in order.items() for op in ops}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["convolutions", "counting"])
def test_ops_stay_where_the_plan_has_them(name: str, seed: int) -> None:
    job = build(name)
    plan = random_plan(graph_of(name), seed=seed)
    inference = capture(Job(job.module, job.args, mode="infer"))
    order = order_of_inference(plan, inference)
    home = homes(order)
    assert sorted(home) == sorted(inference.index)
    for op in inference.ops:
        if op.id in plan.placement:
            assert home[op.id] == plan.placement[op.id]
        if op.colocate is not None:
            assert home[op.id] == home[op.colocate]
    for ops in order.values():
        assert ops == [op for op in inference.topological_order if op in set(ops)]
    modules = {plan.graph.op(op).module: plan.placement[op] for op in plan.graph.index if "batch_norm_legit" in op}
    for op in inference.ops:
        if "no_training" in op.kind:
            assert home[op.id] in {modules[op.module], *plan.order}


def test_ops_without_a_hint_run_where_their_inputs_are() -> None:
    plan = random_plan(graph_of("linear"), seed=2)
    weight = plan.graph.op("weight")
    other = OpGraph((weight, Op("new", "aten.new")), (replace(plan.graph.edges_from["weight"][0], target="new"),))
    assert homes(order_of_inference(plan, other))["new"] == plan.placement["weight"]


def test_other_shapes_must_have_the_same_ops() -> None:
    plan = random_plan(graph_of("linear"))
    assert order_at_other_shapes(plan, plan.graph) == plan.order
    with pytest.raises(MismatchError, match="op 'mul' is only in the model; capture and solve for them"):
        order_at_other_shapes(plan, replace(plan.graph, ops=(*plan.graph.ops, Op("mul", "aten.mul"))))
