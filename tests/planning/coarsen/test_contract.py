"""What a contracted op costs, holds, reads and returns."""

from dataclasses import replace

import networkx as nx
import pytest
from planning.coarsen.random_graphs import random_graph, random_labels

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.machines.costs.roofline import Rates, roofline_s
from dlplacer.planning.coarsen.contract import contract, members_of
from dlplacer.planning.coarsen.granularity import acyclic_groups

SPEC = TensorSpec((2,), "float32", 8)


def op(name: str, **fields: object) -> Op:
    return Op(name, "test", **{"outputs": (SPEC,), "output_bytes": 8, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_kept_and_edges_are_those_between_groups(seed: int) -> None:
    graph = random_graph(seed)
    groups = acyclic_groups(graph, random_labels(graph, seed))
    coarse = contract(graph, groups, "test")
    for amount in ("flops", "bytes_accessed", "weight_bytes", "gradient_bytes", "state_bytes"):
        assert sum(getattr(op, amount) for op in coarse.ops) == sum(getattr(op, amount) for op in graph.ops)
    for kind in ("fast", "slow"):
        total = sum(op.time_on(kind) or 0.0 for op in graph.ops)
        assert sum(op.time_on(kind) or 0.0 for op in coarse.ops) == pytest.approx(total)
    owner = {member: op.id for op in coarse.ops for member in members_of(op)}
    assert owner.keys() == graph.index.keys()
    assert {(edge.source, edge.target) for edge in coarse.edges} == {
        (owner[edge.source], owner[edge.target]) for edge in graph.edges if owner[edge.source] != owner[edge.target]
    }
    carried = {(edge.tensor, owner[edge.target]) for edge in graph.edges if owner[edge.source] != owner[edge.target]}
    assert {(edge.tensor, edge.target) for edge in coarse.edges if edge.bytes} == {
        entry for entry in carried if entry[0].startswith("t")
    }
    pairs = [(edge.tensor, edge.target) for edge in coarse.edges]
    assert len(pairs) == len(set(pairs))
    assert nx.is_directed_acyclic_graph(coarse.to_networkx())


# Brute force: what colocation asks of the members is what it asks of the contracted ops.
@pytest.mark.parametrize("seed", range(5))
def test_groups_that_meet_become_one(seed: int) -> None:
    graph = random_graph(seed)
    coarse = contract(graph, acyclic_groups(graph, random_labels(graph, seed)), "test")
    together = nx.Graph()
    for coarse_op in coarse.ops:
        for member in members_of(coarse_op):
            together.add_edge(("in", coarse_op.id), ("op", member))
            group = graph.op(member).colocate
            if group is not None:
                together.add_edge(("op", member), ("group", group))
    held = {op.id: op.colocate for op in coarse.ops}
    for one in held:
        for other in held:
            if held[one] is not None and held[other] is not None:
                linked = nx.has_path(together, ("in", one), ("in", other))
                assert linked == (held[one] == held[other])


@pytest.mark.parametrize("seed", range(5))
def test_the_footprint_lies_between_what_leaves_and_all(seed: int) -> None:
    graph = random_graph(seed)
    coarse = contract(graph, acyclic_groups(graph, random_labels(graph, seed)), "test")
    for joined in coarse.ops:
        members = [graph.op(name) for name in members_of(joined)]
        everything = sum(member.output_bytes + member.workspace_bytes for member in members)
        largest = max(member.workspace_bytes for member in members)
        assert joined.output_bytes == sum(spec.bytes for spec in joined.outputs)
        assert joined.output_bytes + largest <= joined.output_bytes + joined.workspace_bytes <= everything


def test_parts_of_a_contracted_op_run_one_after_another() -> None:
    rates = Rates({"float32": 1e3}, 1e3, overhead_s=0.5)
    graph = OpGraph((op("a", flops=7000), op("b", bytes_accessed=7000)), (Edge("a", "b", 8),))
    single = [roofline_s(each, rates) for each in graph.ops]
    joined = contract(graph, {"ab": ["a", "b"]}, "fused").op("ab")
    assert roofline_s(joined, rates) == pytest.approx(sum(single))
    half = replace(joined, flops=3500, bytes_accessed=3500)
    assert roofline_s(half, rates) == pytest.approx(sum(single) / 2)


# 7000 FLOP in float16 ÷ (0.7 · 4e3 FLOP/s) = 2.5 s, in float32 ÷ (0.7 · 1e3 FLOP/s) = 10 s.
def test_every_part_of_a_contracted_op_takes_the_rate_of_its_own_dtype() -> None:
    rates = Rates({"float32": 1e3, "float16": 4e3}, 1e3)
    ops = (op("a", flops=7000, dtype="float16"), op("b", flops=7000, dtype="float32"))
    graph = OpGraph(ops, (Edge("a", "b", 8),))
    joined = contract(graph, {"ab": ["a", "b"]}, "fused").op("ab")
    assert roofline_s(joined, rates) == pytest.approx(2.5 + 10)
