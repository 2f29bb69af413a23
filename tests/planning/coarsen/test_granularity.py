"""Fused chains and modules of captured graphs, and plans of them led back to ATen ops."""

from dataclasses import replace

import pytest
from runtime.random_plans import random_plan
from solvers.helpers import make_machine

from dlplacer.check import check_plan
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.files.load import load_graph, load_topology
from dlplacer.planning.coarsen import coarsen, expanded_order, expanded_plan
from dlplacer.planning.coarsen.contract import contract, members_of
from dlplacer.planning.coarsen.fuse import chains
from dlplacer.planning.coarsen.modules import by_module
from dlplacer.planning.place import place
from dlplacer.report.export import device_map

COARSE = ["fused", "module", "module:1"]


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
    coarse = coarsen(graph, "module:1")
    ids = set(coarse.index)
    blocks = {op.module.partition(".")[0] for op in graph.ops if op.module and op.kind == "aten.convolution"}
    assert len(blocks) == 16
    assert {name for block in blocks for name in (block, f"{block}.backward")} <= ids
    members = [graph.op(name) for name in members_of(coarse.op("Mixed_5b"))]
    assert all(op.module is not None and op.module.startswith("Mixed_5b") for op in members)
    assert {op.phase for op in members} == {"forward"}


def test_labels_of_modules() -> None:
    paths = {"conv": "a.b.conv", "add": "a.b", "top": "fc", "loss": None, "deep": "a.b.c.d"}
    ops = [Op(name, "test", module=path, phase="forward") for name, path in paths.items()]
    late = Op("late", "test", module="fc", phase="backward")
    waiting = Op("waiting", "mutation", module="fc", phase="forward")
    graph = OpGraph((*ops, late, waiting, Op("x", "input")), (Edge("late", "waiting", 1),))
    assert by_module(graph) == {
        "conv": "a.b",
        "add": "a.b",
        "top": "fc",
        "loss": "step",
        "deep": "a.b.c",
        "late": "fc.backward",
    }
    assert by_module(graph, depth=1)["deep"] == "a"


# a → b → c and b → d: c and d both read b, so neither joins it. A second op with FLOPs starts a chain of its own.
def test_chains_end_where_they_branch_and_before_a_second_product() -> None:
    def op(name: str, **fields: object) -> Op:
        return Op(name, "test", phase="forward", **fields)  # type: ignore[arg-type]

    edges = tuple(Edge(*ends, 1) for ends in ("ab", "bc", "bd", "de", "ef"))
    graph = OpGraph((op("a", flops=1), op("b"), op("c"), op("d"), op("e", flops=1), op("f", flops=1)), edges)
    assert chains(graph) == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "d", "f": "f"}
    saved = replace(graph, ops=(*graph.ops[:2], replace(graph.op("c"), phase="backward"), *graph.ops[3:]))
    assert chains(saved) == {"a": "a", "b": "a", "c": "c", "d": "a", "e": "e", "f": "f"}
    pinned = replace(graph, ops=(graph.op("a"), replace(graph.op("b"), devices=("x",)), *graph.ops[2:]))
    assert chains(pinned)["b"] == "b"


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
    assert {device: list(names) for device, names in expanded_order(coarse, plan.order).items()} == {
        device: list(names) for device, names in fine.order.items()
    }


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
    covered = device_map(plan)
    assert all(any((op.id + ".").startswith(f"{path}.") or not path for path in covered) for op in stored)


# Where every op of the fine graph gets its share of the coarse op's time, transfers can only start earlier.
def test_an_expanded_plan_is_not_slower() -> None:
    ops = tuple(Op(name, "test", bytes_accessed=10) for name in "abcd")
    graph = OpGraph(ops, (Edge("a", "b", 8), Edge("a", "c", 8), Edge("b", "d", 8), Edge("c", "d", 8)))
    timed = replace(graph, ops=tuple(replace(op, time_s=1.0) for op in graph.ops))
    for seed in range(20):
        plan = random_plan(contract(timed, {"bc": ["b", "c"]}, "test"), seed=seed)
        assert expanded_plan(plan, graph).makespan_s <= plan.makespan_s * (1 + 1e-9)


# What a profile says of a coarse op is not lost where its ops tell neither FLOPs nor bytes.
def test_ops_without_flops_and_bytes_share_the_coarse_ops_time() -> None:
    graph = OpGraph(tuple(Op(name, "test") for name in "abcd"), (Edge("a", "b", 8), Edge("b", "c", 8)))
    coarse = contract(graph, {"abc": ["a", "b", "c"]}, "test")
    times = {"abc": 6.0, "d": 2.0}
    timed = replace(coarse, ops=tuple(replace(op, time_s=times[op.id]) for op in coarse.ops))
    fine = expanded_plan(place(timed, make_machine(1), method="list").plan, graph)
    lengths_s = {entry.op: entry.end_s - entry.start_s for entry in fine.ops}
    assert lengths_s == pytest.approx({"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0})
