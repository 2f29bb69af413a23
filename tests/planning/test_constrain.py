"""Pins and colocation: what a pattern means, what is refused, and that solvers keep what the oracle keeps."""

from dataclasses import replace
from random import Random

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_problem

from dlplacer.check import violations
from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.planning.compare import compare
from dlplacer.planning.constrain import constrained, matching
from dlplacer.planning.place import place

NET = OpGraph(
    (
        Op("w", "parameter", 0.0, module="encoder.conv", colocate="w"),
        Op("conv", "aten.convolution", 2.0, module="encoder.conv"),
        Op("relu", "aten.relu", 1.0, module="encoder"),
        Op("head", "aten.linear", 2.0, module="encoder2"),
        Op("cut#1", "aten.linear", 1.0, origin=("cut",)),
        Op("w.grad", "gradient", 0.0, module="encoder.conv", colocate="w"),
    ),
    (Edge("w", "conv", 4), Edge("conv", "relu", 4), Edge("relu", "head", 4), Edge("head", "w.grad", 4)),
)
BOX = make_machine(2)


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("conv", ("conv",)),
        ("encoder.conv", ("w", "conv", "w.grad")),
        # A module means the modules in it, and not another whose name begins alike.
        ("encoder", ("w", "conv", "relu", "w.grad")),
        ("encoder.*", ("w", "conv", "w.grad")),
        ("encoder*", ("w", "conv", "relu", "head", "w.grad")),
        ("w*", ("w", "w.grad")),
        ("cut", ("cut#1",)),
    ],
)
def test_a_pattern_means(pattern: str, ops: tuple[str, ...]) -> None:
    assert matching(NET, pattern) == ops


@pytest.mark.parametrize(
    ("pins", "colocate", "message"),
    [
        ({"encodr": "d0"}, (), "has no op or module 'encodr'; it has 'encoder'"),
        ({"conv": "d7"}, (), "the topology has no device 'd7'; it has 'd0', 'd1'"),
        ({"conv": "d0", "c?nv": "d1"}, (), "pin 'c?nv' = 'd1': op 'conv' is pinned to 'd0' and to 'd1'"),
        ({}, ["conv"], "colocation 'conv' matches only one op; name two or more"),
        ({}, ["head,nothing"], "has no op or module 'nothing'"),
    ],
)
def test_what_cannot_be_is_told(pins: dict[str, str], colocate: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        constrained(NET, BOX, pins, colocate)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pins", "colocate"), [({"w": "d0", "w.grad": "d1"}, ()), ({"conv": "d0", "head": "d1"}, ["conv,head"])]
)
def test_pins_that_tear_a_set_apart_leave_no_plan(pins: dict[str, str], colocate: list[str]) -> None:
    with pytest.raises(InfeasibleError, match=r"no device that all its ops may use: .* may run on 'd0'; .*'d1'"):
        place(NET, BOX, pins=pins, colocate=colocate)


def _random_constraints(random: Random, graph: OpGraph, topology: Topology) -> Constraints:
    names = [op.id for op in graph.ops]
    devices = [name for device in topology.devices for name in (device.id, device.type)]
    pins = {name: random.choice(devices) for name in names if random.random() < 0.3}
    sets = [tuple(random.sample(names, 2)) for _ in range(random.choice([0, 1, 1, 2])) if len(names) > 1]
    return Constraints(pins, tuple(dict.fromkeys(sets)))


def _as_op_data(graph: OpGraph, held: Constraints, topology: Topology) -> OpGraph:
    """The same demands in the fields of the ops, as the oracle knows them."""
    group = {op.id: op.colocate for op in graph.ops}
    for ops in held.colocate:
        names = {group[op] for op in ops} - {None}
        joined = "+".join(ops)
        group = {op: joined if op in ops or (own is not None and own in names) else own for op, own in group.items()}

    def devices(op: Op) -> tuple[str, ...] | None:
        if op.id not in held.pins:
            return op.devices
        pin = held.pins[op.id]
        fitting = [device for device in topology.devices if pin in (device.id, device.type)]
        return tuple(
            device.id for device in fitting if op.devices is None or {device.id, device.type} & set(op.devices)
        )

    return replace(graph, ops=tuple(replace(op, devices=devices(op), colocate=group[op.id]) for op in graph.ops))


def test_the_optimum_is_that_of_all_placements_that_keep_the_constraints() -> None:
    compared = infeasible = 0
    for seed in range(40):
        random = Random(seed)
        graph, topology = random_problem(seed)
        held = _random_constraints(random, graph, topology)
        best = optimal_makespan(_as_op_data(graph, held, topology), topology)
        try:
            result = place(replace(graph, constraints=held), topology, Options.paper(), time_limit_s=20, workers=1)
        except (InputError, InfeasibleError):
            assert best is None, seed
            infeasible += 1
            continue
        assert best is not None, seed
        assert result.plan.status == "optimal", seed
        assert result.plan.makespan_s == pytest.approx(float(best)), seed
        assert violations(result.plan) == (), seed
        compared += 1
    assert compared > 15, compared
    assert infeasible > 2, infeasible


def test_speedups_refer_to_one_device_without_pins() -> None:
    graph = make_graph({"a": 2, "b": 2}, [])
    result = place(graph, BOX, pins={"a": "d0", "b": "d1"}, time_limit_s=20, workers=1)
    assert result.single_device_s == 4
    assert result.speedup == 2
    comparison = compare(graph, BOX, pins={"a": "d0", "b": "d1"}, methods=["ilp", "heft"], time_limit_s=20, workers=1)
    assert [comparison.speedup(row) for row in comparison.rows] == [2, 2]
