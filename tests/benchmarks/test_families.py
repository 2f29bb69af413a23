"""The generators of the benchmark suite: deterministic, of the size, ratio and shape asked for, on valid machines."""

import pytest
from benchmarks.families import FAMILIES, FEWEST_OPS, MEAN_OP_S
from benchmarks.machines import MACHINES, ccr_on, linked
from benchmarks.run_suite import Run, defects
from benchmarks.suite import SETS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("op_count", "ccr"), [(FEWEST_OPS, 0.1), (40, 10.0)])
def test_a_graph_repeats_and_has_the_ops_ratio_and_mean_time_asked_for(family: str, op_count: int, ccr: float) -> None:
    graph = FAMILIES[family](op_count, 3, ccr)
    assert graph == FAMILIES[family](op_count, 3, ccr)
    assert graph.ops != FAMILIES[family](op_count, 4, ccr).ops
    assert len(graph.ops) == op_count
    if family != "layered":
        assert all(graph.edges_into[op.id] or graph.edges_from[op.id] for op in graph.ops)
    assert ccr_on(graph, linked(2, latency_s=0.0)) == pytest.approx(ccr, rel=0.005)
    assert sum(op.time_on("fast") or 0.0 for op in graph.ops) / op_count == pytest.approx(MEAN_OP_S, rel=0.001)


@pytest.mark.parametrize("chosen", SETS)
def test_sets_cover_all_families_and_ratios_by_unique_names(chosen: str) -> None:
    instances = SETS[chosen]
    assert len({instance.name for instance in instances}) == len(instances)
    assert {instance.family for instance in instances} == set(FAMILIES)
    assert {instance.ccr for instance in instances} == {0.1, 1.0, 10.0}
    assert {instance.machine for instance in instances} == set(MACHINES)


def test_defects_are_found() -> None:
    good = Run("ilp", 1.0, 1.0, 0.0, 0.1, "optimal"), Run("heft", 1.25, 0.5, 0.0, 0.1, "feasible")
    assert not list(defects("it", 5.0, good))
    worse = Run("ilp", 1.5, 1.3, 0.2, 6.1, "feasible"), good[1]
    assert list(defects("it", 5.0, worse)) == [
        "it: ilp took 6.1 s with a limit of 5 s",
        "it: ilp calls 0.2 s of 1.5 s rounding",
        "it: heft found 1.25 s, ilp's bound is 1.3 s",
        "it: a baseline found 1.25 s, ilp 1.5 s",
    ]
