"""The generators of the benchmark suite: deterministic, of the size, ratio and shape asked for, on valid machines."""

import pytest
from benchmarks.families import FAMILIES, FEWEST_OPS, MEAN_OP_S
from benchmarks.machines import MACHINES, ccr_on, linked
from benchmarks.run_suite import Row, Run
from benchmarks.suite import SETS

from dlplacer.core.graph import OpGraph

every_family = pytest.mark.parametrize("family", FAMILIES)


def times_s(graph: OpGraph, device_type: str = "fast") -> list[float]:
    return [op.time_on(device_type) or 0.0 for op in graph.ops]


def readers(graph: OpGraph) -> list[int]:
    return [len({edge.target for edge in edges}) for edges in graph.edges_from.values()]


def sources(graph: OpGraph) -> list[int]:
    return [len({edge.source for edge in edges}) for edges in graph.edges_into.values()]


@every_family
def test_equal_arguments_give_equal_graphs(family: str) -> None:
    assert FAMILIES[family](30, 3) == FAMILIES[family](30, 3)
    assert FAMILIES[family](30, 3).ops != FAMILIES[family](30, 4).ops


@every_family
@pytest.mark.parametrize("op_count", [FEWEST_OPS, 9, 21, 64, 300])
def test_a_graph_has_the_ops_asked_for_and_no_op_stands_alone(family: str, op_count: int) -> None:
    graph = FAMILIES[family](op_count, op_count)
    assert len(graph.ops) == op_count
    if family != "layered":
        assert all(into + out for into, out in zip(sources(graph), readers(graph), strict=True))
    assert len(graph.topological_order) == op_count


@every_family
@pytest.mark.parametrize("ccr", [0.1, 1.0, 10.0])
def test_ratio_and_mean_time_on_the_reference_machine(family: str, ccr: float) -> None:
    graph = FAMILIES[family](40, 1, ccr)
    assert ccr_on(graph, linked(2, latency_s=0.0)) == pytest.approx(ccr, rel=0.005)
    assert sum(times_s(graph)) / 40 == pytest.approx(MEAN_OP_S, rel=0.001)


@pytest.mark.parametrize("chosen", SETS)
def test_sets_cover_all_families_and_ratios_by_unique_names(chosen: str) -> None:
    instances = SETS[chosen]
    assert len({instance.name for instance in instances}) == len(instances)
    assert {instance.family for instance in instances} == set(FAMILIES)
    assert {instance.ccr for instance in instances} == {0.1, 1.0, 10.0}
    assert {instance.machine for instance in instances} == set(MACHINES)


def test_defects_are_found() -> None:
    instance = SETS["quick"][0]
    good = Run("ilp", 1.0, 1.0, 0.0, 0.1, "optimal"), Run("heft", 1.25, 0.5, 0.0, 0.1, "feasible")
    row = Row(instance, 5.0, good)
    assert not list(row.defects())
    assert row.ratio == 0.8
    assert row.proven
    assert row.is_open
    worse = Row(instance, 5.0, (Run("ilp", 1.5, 1.3, 0.2, 6.1, "feasible"), good[1]))
    assert [defect.removeprefix(instance.name + ": ") for defect in worse.defects()] == [
        "ilp took 6.1 s with a limit of 5 s",
        "ilp calls 0.2 s of 1.5 s rounding",
        "heft found 1.25 s, ilp's bound is 1.3 s",
        "a baseline found 1.25 s, ilp 1.5 s",
    ]
