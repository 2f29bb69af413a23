"""Where the inference graph of a training plan runs."""

import itertools
import random
from dataclasses import replace

import pytest
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import random_plan

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.frontend import Job, capture
from dlplacer.runtime.placed.variant import order_like
from dlplacer.runtime.program.checks import races
from dlplacer.runtime.program.program import lower


def homes(order: dict[str, list[str]]) -> dict[str, str]:
    return {op: device for device, ops in order.items() for op in ops}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["convolutions", "counting"])
def test_ops_stay_where_the_plan_has_them(name: str, seed: int) -> None:
    job = build(name)
    plan = random_plan(graph_of(name), seed=seed)
    inference = capture(Job(job.module, job.args, mode="infer"))
    order = order_like(plan, inference)
    home = homes(order)
    assert sorted(home) == sorted(inference.index)
    for op in inference.ops:
        if op.id in plan.placement:
            assert home[op.id] == plan.placement[op.id]
        if op.colocate is not None:
            assert home[op.id] == home[op.colocate]
    races(inference, [lower(inference, order, ())])
    modules = {plan.graph.op(op).module: plan.placement[op] for op in plan.graph.index if "batch_norm_legit" in op}
    for op in inference.ops:
        if "no_training" in op.kind:
            assert home[op.id] in {modules[op.module], *plan.order}


def test_the_same_ops_keep_the_plans_order() -> None:
    plan = random_plan(graph_of("linear"))
    assert order_like(plan, plan.graph) == plan.order


def test_an_op_that_appears_follows_the_op_it_reads() -> None:
    plan = random_plan(graph_of("branches"), seed=5)
    weight = next(op.id for op in plan.graph.ops if op.kind == "parameter")
    copied = replace(plan.graph.edges_from[weight][0], target="copied")
    order = order_like(
        plan, replace(plan.graph, ops=(*plan.graph.ops, Op("copied", "aten.copy")), edges=(*plan.graph.edges, copied))
    )
    found = homes(order)
    assert found["copied"] == plan.placement[weight]
    assert {op: device for op, device in found.items() if op != "copied"} == dict(plan.placement)
    here = order[found["copied"]]
    assert here.index("copied") == here.index(weight) + 1


def test_a_parameter_that_appears_goes_to_what_reads_it() -> None:
    plan = random_plan(graph_of("branches"), seed=5)
    new = [Op("new", "parameter", colocate="new"), Op("new.grad", "gradient", colocate="new")]
    for reader in (op.id for op in plan.graph.ops if op.kind.startswith("aten")):
        edges = (*plan.graph.edges, Edge("new", reader, 4, 0, "new"))
        found = homes(order_like(plan, replace(plan.graph, ops=(*plan.graph.ops, *new), edges=edges)))
        assert found["new"] == found["new.grad"] == plan.placement[reader]


@pytest.mark.parametrize("seed", range(6))
def test_ops_that_vanish_and_appear_leave_an_order_that_runs(seed: int) -> None:
    """Any rewiring: the orders of all devices together respect every dependency."""
    chooser = random.Random(seed)
    plan = random_plan(graph_of("convolutions"), device_count=3, seed=seed)
    gone = {op.id for op in plan.graph.ops if chooser.random() < 0.3}
    kept = [op for op in plan.graph.ops if op.id not in gone]
    edges = [edge for edge in plan.graph.edges if not {edge.source, edge.target} & gone]
    kept += [Op(f"new{number}", "aten.new") for number in range(20)]
    turned = chooser.sample(kept, len(kept))
    edges += [
        Edge(source.id, target.id, 4, 0, f"{source.id}>{target.id}")
        for source, target in itertools.pairwise(turned)
        if not (source.id in plan.graph.index and target.id in plan.graph.index)
    ]
    try:
        graph = OpGraph(tuple(kept), tuple(edges))
    except InputError:  # a cycle: drop what goes against the old order
        place = {op.id: position for position, op in enumerate(kept)}
        graph = OpGraph(tuple(kept), tuple(edge for edge in edges if place[edge.source] < place[edge.target]))
    order = order_like(plan, graph)
    found = homes(order)
    assert sorted(found) == sorted(graph.index)
    assert all(found[op.id] == plan.placement[op.id] for op in graph.ops if op.id in plan.placement)
    races(graph, [lower(graph, order, ())])
