"""A plan as the beginning of another solve: never worse, resumed with its bound, mapped, or told why not."""

from dataclasses import replace
from random import Random

import pytest
from check.mutations import MUTATIONS
from check.test_check_mutations import right_plans
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_problem

from dlplacer.check import violations
from dlplacer.core.errors import CheckError, InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.formats import plan_to_dict, read_plan
from dlplacer.planning.place import place
from dlplacer.planning.what_if import what_would_help
from dlplacer.report.explanation import explain


def random_layers(seed: int, ops: int = 60) -> OpGraph:
    """Layers of four ops that read from the layer before: too large to be proved in a moment."""
    random = Random(seed)
    nodes = [Op(f"k{i}", "test", random.randint(1, 9), output_bytes=random.randint(1, 4)) for i in range(ops)]
    edges = [
        Edge(f"k{source}", f"k{i}", random.randint(1, 6))
        for i in range(4, ops)
        for source in {random.randrange(4 * (i // 4 - 1), 4 * (i // 4)) for _ in range(2)}
    ]
    return OpGraph(tuple(nodes), tuple(edges))


# A plan on one device, and what somebody may write into its file. The optimum on two devices is 5 s: the chain a, b.
def test_no_edit_of_bound_status_and_gap_is_believed() -> None:
    graph = make_graph({"a": 2, "b": 3, "c": 2, "d": 1}, [("a", "b", 1)])
    topology = make_machine(2)
    told = plan_to_dict(place(graph, topology, method="single").plan)
    refused, random = 0, Random(0)
    for _ in range(60):
        bound_s = random.choice([0.0, 3.0, 5.0, 6.5, 8.0, 8.1, 1e300, random.uniform(0, 9)])
        gap = random.choice([0.0, 1.0, max(0.0, min(1.0, 1 - bound_s / 8)), random.random()])
        status = random.choice(["optimal", "feasible"])
        edited = read_plan({**told, "lower_bound_s": bound_s, "gap": gap, "status": status}, "plan")
        fits = bound_s <= 8 and abs(gap - (1 - bound_s / 8)) < 1e-6 and (status == "feasible" or not gap)
        assert bool(violations(edited)) != fits
        if not fits:
            refused += 1
            with pytest.raises(CheckError):
                place(graph, topology, warm_start=edited, time_limit_s=5)
            continue
        found = place(graph, topology, warm_start=edited, time_limit_s=5, workers=1).plan
        assert (found.makespan_s, found.lower_bound_s, found.status) == (5, 5, "optimal")
        assert explain(edited).limited_by == "critical path"
    assert 30 < refused < 60


def test_a_stated_bound_proves_nothing_without_time_to_prove_it() -> None:
    graph, topology = random_layers(0), make_machine(3, memory=80, rate=2.0)
    plan = place(graph, topology, method="sequential").plan
    lie = replace(plan, lower_bound_s=plan.makespan_s, gap=0.0, status="optimal")
    found = place(graph, topology, warm_start=lie, time_limit_s=0.3, workers=1).plan
    assert found.lower_bound_s < found.makespan_s <= plan.makespan_s
    assert found.status == "feasible"
    asked = what_would_help(lie, 1.0, workers=1)
    assert asked.base.lower_bound_s < asked.base.makespan_s


def _solved(graph: OpGraph, topology: Topology, seconds: float = 1.0, **more: object) -> Plan:
    return place(graph, topology, time_limit_s=seconds, workers=1, **more).plan  # type: ignore[arg-type]


def test_what_is_proved_stays_proved() -> None:
    graph = make_graph({"a": 1, "b": 2, "c": 2, "d": 1}, [("a", "b", 1), ("a", "c", 1), ("b", "d", 1), ("c", "d", 1)])
    topology = make_machine(2, rate=10.0)
    first = _solved(graph, topology, 60)
    assert first.status == "optimal"
    calls: list[object] = []
    result = place(graph, topology, time_limit_s=60, workers=1, warm_start=first, on_progress=calls.append)
    assert result.plan.status == "optimal"
    assert len(calls) == 2, "the plan, and its bound: nothing is searched"


@pytest.mark.parametrize("seed", range(2))
def test_never_worse_on_a_machine_that_allows_the_plan(seed: int) -> None:
    graph = random_layers(seed)
    topology = make_machine(2, memory=200, rate=1.0)
    first = _solved(graph, topology)
    roomier = replace(topology, devices=tuple(replace(each, memory_bytes=300) for each in topology.devices))
    larger = make_machine(3, memory=200, rate=1.0)
    for machine in (roomier, larger):
        found = _solved(graph, machine, 0.3, warm_start=first)
        assert found.makespan_s <= first.makespan_s * (1 + 1e-9)
        assert violations(found) == ()


def test_random_problems_from_any_plan_of_them_or_of_another() -> None:
    """Every start leads to a right plan that is optimal, wherever it comes from."""
    plans: list[Plan] = []
    for seed in range(16):
        graph, topology = random_problem(seed)
        try:
            cold = _solved(graph, topology, 20, options=Options())
        except (InputError, InfeasibleError):
            continue
        for warm in (cold, *plans[-2:]):
            found = _solved(graph, topology, 20, warm_start=warm)
            assert violations(found) == ()
            assert found.makespan_s == pytest.approx(cold.makespan_s), seed
            assert found.provenance["warm_start"]
        plans.append(cold)
    assert len(plans) > 5


def test_a_plan_that_no_longer_fits_is_not_used_and_says_so() -> None:
    graph = make_graph({f"k{i}": i + 1 for i in range(6)}, [], weight_bytes={f"k{i}": 10 for i in range(6)})
    wide = _solved(graph, make_machine(2, memory=60), 60, pins={f"k{i}": "d0" for i in range(6)})
    found = _solved(graph, make_machine(2, memory=40), 60, warm_start=wide)
    assert violations(found) == ()
    # Six weights of 10 bytes do not fit into 40.
    assert found.provenance["warm_start"].startswith("not used: 6 of 6 ops")
    assert found.provenance["warm_start"].endswith("it exceeds the memory")


def test_a_pinned_op_is_not_where_the_plan_has_it() -> None:
    graph = make_graph({"a": 1, "b": 2, "c": 1}, [("a", "b", 1), ("b", "c", 1)])
    alone = _solved(graph, make_machine(2), pins=dict.fromkeys("abc", "d0"))
    found = _solved(graph, make_machine(2), pins={"b": "d1"}, warm_start=alone).provenance["warm_start"]
    assert found.startswith("2 of 3 ops on the plan's devices, 1 moved because of pins, groups or devices")


@pytest.mark.parametrize("name", ["rename_op", "drop_op", "move_op", "shift_everything", "drop_transfer", "reroute"])
def test_a_plan_that_breaks_its_own_rules_is_no_warm_start(name: str) -> None:
    plan, refused = next(one for one in right_plans(range(40)) if len(one.transfers) > 1), 0
    for attempt in range(12):
        damaged = MUTATIONS[name](Random(attempt), plan)
        if damaged is not None and violations(damaged):
            with pytest.raises(CheckError, match="the plan breaks the rules"):
                place(plan.graph, plan.topology, plan.options, warm_start=damaged, time_limit_s=5.0)
            refused += 1
    assert refused
