"""The generators of the benchmark suite: deterministic, of the size, ratio and shape asked for, on valid machines."""

import json
from pathlib import Path

import pytest
from benchmarks.families import FAMILIES, FEWEST_OPS, MEAN_OP_S
from benchmarks.machines import MACHINES, SLOWDOWN, ccr_on, limited, linked, timed_on
from benchmarks.run_suite import Row, Run, fitted_exponent, geometric_mean, main
from benchmarks.suite import SETS, Instance

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.problem.routes import least_delay_routes

every_family = pytest.mark.parametrize("family", FAMILIES)
every_machine = pytest.mark.parametrize("name", MACHINES)


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
@pytest.mark.parametrize("op_count", [FEWEST_OPS, 9, 10, 11, 13, 17, 21, 40, 64, 150, 1000])
def test_a_graph_has_the_ops_asked_for_and_no_op_stands_alone(family: str, op_count: int) -> None:
    graph = FAMILIES[family](op_count, op_count)
    assert len(graph.ops) == op_count
    if family != "layered":
        assert all(into + out for into, out in zip(sources(graph), readers(graph), strict=True))
    assert len(graph.topological_order) == op_count


@every_family
def test_fewer_ops_than_a_family_needs_are_refused(family: str) -> None:
    with pytest.raises(ValueError, match=f"{family} of {FEWEST_OPS - 1} ops; ask for at least {FEWEST_OPS}"):
        FAMILIES[family](FEWEST_OPS - 1)


@every_family
@pytest.mark.parametrize("ccr", [0.1, 1.0, 10.0])
def test_ratio_and_mean_time_on_the_reference_machine(family: str, ccr: float) -> None:
    graph = FAMILIES[family](40, 1, ccr)
    assert ccr_on(graph, linked(2, latency_s=0.0)) == pytest.approx(ccr, rel=0.005)
    assert sum(times_s(graph)) / 40 == pytest.approx(MEAN_OP_S, rel=0.001)


@every_family
def test_ratio_and_spread_leave_the_structure(family: str) -> None:
    graph, other = FAMILIES[family](40, 1, 0.1, 0.0), FAMILIES[family](40, 1, 10.0, 1.0)
    assert [(edge.source, edge.target) for edge in graph.edges] == [(edge.source, edge.target) for edge in other.edges]


def test_spread_is_that_of_the_durations() -> None:
    assert len(set(times_s(FAMILIES["stencil"](40, spread=0.0)))) == 1
    largest = [max(times_s(FAMILIES["stencil"](400, spread=spread))) for spread in (0.1, 0.5, 1.0)]
    assert largest == sorted(largest)


@every_family
def test_what_an_op_writes_is_its_footprint(family: str) -> None:
    graph = FAMILIES[family](40, 1)
    for op in graph.ops:
        tensors = {edge.tensor: edge.bytes for edge in graph.edges_from[op.id]}
        assert op.output_bytes == sum(tensors.values())


@pytest.mark.parametrize("op_count", [10, 57, 300])
def test_trees(op_count: int) -> None:
    grown, falling = FAMILIES["out_tree"](op_count, 5), FAMILIES["in_tree"](op_count, 5)
    assert sorted(sources(grown)) == [0] + [1] * (op_count - 1)
    assert max(readers(grown)) <= 3
    assert sorted(readers(falling)) == [0] + [1] * (op_count - 1)
    assert max(sources(falling)) <= 3


@pytest.mark.parametrize(
    "family", ["fork_join", "series_parallel", "inception_like", "transformer_like", "mixture_of_experts"]
)
@pytest.mark.parametrize("op_count", [10, 33, 200])
def test_one_op_begins_and_one_ends(family: str, op_count: int) -> None:
    graph = FAMILIES[family](op_count, 2)
    assert sources(graph).count(0) == readers(graph).count(0) == 1
    assert max(readers(graph)) > 1


def test_stages_of_fork_join_are_independent() -> None:
    graph = FAMILIES["fork_join"](100, 1)
    ends = {op.id for op in graph.ops if len(graph.edges_into[op.id]) != 1 or len(graph.edges_from[op.id]) != 1}
    # an op between a fork and a join reads the one and is read by the other; joins read at least two
    assert all((edge.source in ends) != (edge.target in ends) for edge in graph.edges)
    assert min(len(graph.edges_into[end]) for end in ends if graph.edges_into[end]) >= 2


def test_a_stencil_reads_three_above() -> None:
    graph = FAMILIES["stencil"](36)
    assert sorted(sources(graph)) == [0] * 6 + [2] * 10 + [3] * 20


def test_a_pipeline_colocates_its_stages() -> None:
    graph = FAMILIES["pipeline"](66, 1)
    # 4 stages × 8 micro-batches, forward and backward, and two updates
    assert {op.colocate for op in graph.ops} == {f"stage{number}" for number in range(4)}
    kinds = [op.kind for op in graph.ops]
    assert [kinds.count(kind) for kind in ("forward", "backward", "update")] == [32, 32, 2]


def test_two_towers_meet_before_the_loss() -> None:
    graph = FAMILIES["two_tower"](40, 1)
    assert len(graph.edges_into[next(op.id for op in graph.ops if op.kind == "interaction")]) == 2


def test_experts_read_the_router() -> None:
    graph = FAMILIES["mixture_of_experts"](100, 1)
    # the last layer takes what is left over
    assert {len(graph.edges_from[op.id]) for op in graph.ops[:-20] if op.kind == "router"} <= {4, 8}


def test_a_u_net_skips_as_often_as_it_is_deep() -> None:
    graph = FAMILIES["u_net"](100)
    position = graph.index
    # from the end of a level, read by both branches of a residual block on the way up
    spans = [position[edge.target] - position[edge.source] for edge in graph.edges if edge.source != graph.ops[0].id]
    assert sum(span > 8 for span in spans) == 2 * 4


def test_a_recurrent_cell_reads_below_and_before() -> None:
    graph = FAMILIES["recurrent"](256)
    # 4 layers × 16 steps of 4 ops: nothing is read by the recurrent parts of the first step and the inputs of each step
    assert sources(graph).count(0) == 4 + 16


@every_machine
def test_machines_are_connected_and_of_2_to_16_devices(name: str) -> None:
    machine = MACHINES[name]()
    count = len(machine.devices)
    assert 2 <= count <= 16
    assert len(least_delay_routes(machine, [1], "store-and-forward")[1]) == count * (count - 1)
    assert set(machine.device_types) <= set(SLOWDOWN)


def test_the_machines_differ_in_kind() -> None:
    machines = [make() for make in MACHINES.values()]
    assert {bool(machine.routers) for machine in machines} == {True, False}
    assert {len(machine.device_types) for machine in machines} == {1, 2, 3}
    assert {2, 16} <= {len(machine.devices) for machine in machines}


def test_times_by_type() -> None:
    machine = MACHINES["mixed-tree-6"]()
    graph = FAMILIES["layered"](400)
    timed = timed_on(graph, machine)
    assert timed == timed_on(graph, machine)
    for name, slowdown in SLOWDOWN.items():
        factors = [new / old for new, old in zip(times_s(timed, name), times_s(graph), strict=True)]
        assert geometric_mean(factors) == pytest.approx(slowdown, rel=0.1)
    assert timed_on(graph, linked(4)) is graph


def test_limited_memory_holds_the_largest_op() -> None:
    graph = FAMILIES["layered"](20)
    total = sum(op.footprint_bytes for op in graph.ops)
    sizes = [device.memory_bytes for device in limited(linked(2), graph, 1.5).devices]
    assert sizes == [pytest.approx(0.75 * total)] * 2
    assert limited(linked(16), graph, 0.1).devices[0].memory_bytes == max(op.footprint_bytes for op in graph.ops)


@pytest.mark.parametrize("chosen", SETS)
def test_sets_cover_all_families_and_ratios_by_unique_names(chosen: str) -> None:
    instances = SETS[chosen]
    assert len({instance.name for instance in instances}) == len(instances)
    assert {instance.family for instance in instances} == set(FAMILIES)
    assert {instance.ccr for instance in instances} == {0.1, 1.0, 10.0}
    assert {instance.machine for instance in instances} == set(MACHINES)


@pytest.mark.parametrize("instance", SETS["quick"], ids=lambda instance: instance.name)
def test_instances_have_the_ratio_asked_for_on_their_machine(instance: Instance) -> None:
    graph, machine = instance.build()
    assert len(graph.ops) == instance.op_count
    assert ccr_on(graph, machine) == pytest.approx(instance.ccr, rel=0.02)
    build_problem(graph, machine, Options.paper())


def test_figures() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None
    assert fitted_exponent([(10, 3.0), (100, 300.0), (1000, 30_000.0)]) == pytest.approx(2.0)
    assert fitted_exponent([(10, 3.0)]) is None


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


def test_the_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "results.json"
    arguments = ["--quick", "--family", "u_net", "--time-limit", "1", "--workers", "1", "--no-growth"]
    assert main([*arguments, "--json", str(target)]) in (0, 1)
    assert "u_net                        2" in capsys.readouterr().out
    content = json.loads(target.read_text(encoding="utf-8"))
    assert [row["instance"]["family"] for row in content["rows"]] == ["u_net", "u_net"]
    assert content["summaries"]["all"]["all"]["instances"] == 2
