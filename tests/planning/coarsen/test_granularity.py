"""Fused chains and modules of captured graphs, and plans of them led back to ATen ops."""

import pytest

from dlplacer.check import check_plan
from dlplacer.files.load import load_graph, load_topology
from dlplacer.planning.coarsen import coarsen, expanded_plan
from dlplacer.planning.coarsen.contract import members_of
from dlplacer.planning.place import place

COARSE = ["fused", "module"]


# 94 convolutions, each with batch norm and activation; 9 + 2 pools and 11 concatenations … of which most follow a
# concatenation that is read by several branches. Every convolution ends up in a chain with its own norm.
def test_a_convolution_is_fused_with_what_follows_it() -> None:
    graph = load_graph("inception_v3-infer")
    coarse = coarsen(graph, "fused")
    for op in coarse.ops:
        kinds = [graph.op(name).kind for name in members_of(op)]
        assert kinds.count("aten.convolution") <= 1
        if "aten.convolution" in kinds:
            assert any("batch_norm" in kind for kind in kinds)
            assert "aten.relu" in kinds
    assert sum(op.flops > 0 for op in coarse.ops) == sum(op.flops > 0 for op in graph.ops)


def test_a_module_is_one_op_in_each_phase() -> None:
    graph = load_graph("inception_v3-train")
    coarse = coarsen(graph, "module")
    blocks = {op.module.rpartition(".")[0] for op in graph.ops if op.module and op.kind == "aten.convolution"}
    assert len(blocks) == 94
    assert {name for block in blocks for name in (block, f"{block}.backward")} <= coarse.index.keys()
    members = [graph.op(name) for name in members_of(coarse.op("Mixed_5b.branch1x1"))]
    assert all(op.module is not None and op.module.startswith("Mixed_5b.branch1x1") for op in members)
    assert {op.phase for op in members} == {"forward"}


@pytest.mark.parametrize("granularity", COARSE)
@pytest.mark.parametrize(
    "name",
    ["inception_v3-infer", "inception_v3-train-colocated", pytest.param("inception_v3-train", marks=pytest.mark.slow)],
)
def test_plans_of_coarse_graphs_are_plans_of_the_fine_one(name: str, granularity: str) -> None:
    graph = load_graph(name)
    coarse = coarsen(graph, granularity)
    assert len(coarse.ops) < len(graph.ops)
    assert sum(op.flops for op in coarse.ops) == sum(op.flops for op in graph.ops)
    assert coarse.capture is not None
    assert coarse.capture["granularity"] == granularity
    plan = place(coarse, load_topology("dgx1-v100-2gpu"), method="heft").plan
    fine = expanded_plan(plan, graph)
    check_plan(fine)
    for op in coarse.ops:
        assert {fine.placement[name] for name in members_of(op)} == {plan.placement[op.id]}
    for device, names in plan.order.items():
        assert [one for name in names for one in members_of(coarse.op(name))] == list(fine.order[device])


@pytest.mark.parametrize("granularity", COARSE)
def test_parameters_stay_and_are_where_their_module_is(granularity: str) -> None:
    graph = load_graph("inception_v3-infer")
    coarse = coarsen(graph, granularity)
    stored = [op for op in graph.ops if op.kind in ("parameter", "buffer")]
    assert sum(coarse.op(op.id).weight_bytes for op in stored) == sum(op.weight_bytes for op in graph.ops)
    assert [coarse.op(op.id).module for op in stored] == [op.module for op in stored]
    inside = [op for op in coarse.ops if op.flops and all(graph.op(name).module for name in members_of(op))]
    assert granularity == "fused" or all(op.module for op in inside)
    plan = place(coarse, load_topology("dgx1-v100-2gpu"), method="heft").plan
    for op in stored:
        assert all(plan.placement[edge.target] == plan.placement[op.id] for edge in coarse.edges_from[op.id])
