"""Heuristics in machine code: they find what those in Python do, and their schedules keep every rule."""

from collections.abc import Callable

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import cluster, limited, linked, mixed, ring, star
from solvers.helpers import broken_rules

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import Rule as PythonRule
from dlplacer.solvers.heuristics.heft import heft
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.peft import by_optimistic_cost, optimistic_costs, peft
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.decode.arrays import build_arrays
from dlplacer.solvers.local_search.greedy_rules import Rule
from dlplacer.solvers.decode.decode import Tables, list_by

MACHINES: dict[str, Callable[[], Topology]] = {
    "star": lambda: star(4),
    "ring": lambda: ring(4),
    "cluster": lambda: cluster(8),
    "unequal": lambda: mixed(linked(4), "fast", "slow"),
}


def _tables(family: str, machine: Topology, op_count: int = 80, seed: int = 0, instant: int | None = None) -> Tables:
    """With `instant`, one op of three takes no time."""
    drawn = FAMILIES[family](op_count, seed, 1.0)
    ops = tuple(
        Op(
            op.id,
            op.kind,
            {
                name: 0.0 if number % 3 == instant else (op.time_on("fast") or 0.0) * (1.0 + at)
                for at, name in enumerate(machine.device_types)
            },
            output_bytes=op.output_bytes,
        )
        for number, op in enumerate(drawn.ops)
    )
    instance = build_instance(build_problem(OpGraph(ops, drawn.edges), machine, Options()))
    built = build_arrays(instance)
    assert built is not None
    return instance, *built


def _sorted(place: list[int]) -> list[int]:
    return sorted(range(len(place)), key=place.__getitem__)


def _as_published(instance: Instance, name: str, place: list[int]) -> Rule:
    devices = range(instance.device_count)
    if name == "peft":
        table = optimistic_costs(instance)
        return Rule(_sorted(by_optimistic_cost(instance, table, place)), devices, ahead=table)
    return Rule(_sorted(place), devices, works_on=name == "list")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("family", ["layered", "stencil", "series_parallel"])
@pytest.mark.parametrize(("name", "rule"), [("heft", heft), ("peft", peft), ("list", list_schedule)])
def test_devices_are_those_of_the_heuristic_in_python(name: str, rule: PythonRule, family: str, machine: str) -> None:
    instance, *built = _tables(family, MACHINES[machine]())
    place = by_rank(instance, upward_ranks(instance))
    found = list_by((instance, *built), _as_published(instance, name, place)).chain()
    known = rule(instance, place, None)
    assert found is not None
    assert known is not None
    schedule = found.schedule()
    assert broken_rules(instance, schedule) == []
    assert schedule.device == known.device
    # Times of routes are a tick higher at most: they come from a line. The list schedule in Python plans its transfers
    # anew, which seldom is as good.
    most = known.makespan + len(schedule.transfers)
    assert schedule.makespan <= most
    if name != "list":
        assert schedule.makespan == pytest.approx(known.makespan, abs=len(schedule.transfers))


@pytest.mark.parametrize("works_on", [False, True])
@pytest.mark.parametrize("family", ["layered", "transformer_like"])
@pytest.mark.parametrize("slack", [1.2, 10.0])
def test_rules_are_kept(family: str, slack: float, works_on: bool) -> None:
    graph = FAMILIES[family](60, 0, 2.0)
    instance = build_instance(build_problem(graph, limited(star(4), graph, slack), Options(memory="sum")))
    built = build_arrays(instance)
    assert built is not None
    for devices in ((0, 1, 2, 3), (1, 3)):
        rule = Rule(instance.order, devices, works_on=works_on)
        listed = list_by((instance, *built), rule)
        chain = listed.chain()
        if chain is not None:
            found = chain.schedule()
            assert broken_rules(instance, found) == []
            assert set(found.device) <= set(devices)
            assert found.makespan <= listed.makespan + len(found.transfers)
        assert chain is not None or slack < 2
