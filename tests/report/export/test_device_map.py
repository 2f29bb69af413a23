"""Plans as device maps of Hugging Face."""

from dataclasses import replace

import pytest
from runtime.random_plans import machine, random_plan

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Device
from dlplacer.report.export import device_map
from dlplacer.report.export.device_map import spread_modules


def plan_of(homes: dict[str, int], ops: tuple[Op, ...]) -> Plan:
    """A plan for these ops, one after another, on devices d0 and d1."""
    base = random_plan(OpGraph((Op("x", "test"),), ()), 2)
    entries = tuple(ScheduledOp(op.id, f"d{homes[op.id]}", float(i), i + 1.0) for i, op in enumerate(ops))
    gpus = replace(machine(2), devices=(Device("d0", "V100"), Device("d1", "V100")))
    return replace(base, graph=OpGraph(ops, ()), topology=gpus, ops=entries, makespan_s=float(len(ops)))


def stored(name: str, size_bytes: int, kind: str = "parameter") -> Op:
    return Op(name, kind, 0.0, weight_bytes=size_bytes, phase="forward", module=name.rpartition(".")[0] or None)


# body.0 and body.1 are on 0, body.2 on 1, head on 1: body cannot stand for its parts, so each of them is named.
def test_the_fewest_modules_are_named() -> None:
    ops = tuple(stored(name, 8) for name in ("body.0.weight", "body.1.weight", "body.1.bias", "body.2.w", "head.fc.w"))
    plan = plan_of({"body.0.weight": 0, "body.1.weight": 0, "body.1.bias": 0, "body.2.w": 1, "head.fc.w": 1}, ops)
    assert device_map(plan) == {"body.0": 0, "body.1": 0, "body.2": 1, "head": 1}
    names = {"d0": "cuda:2", "d1": "cpu"}
    assert device_map(plan, names) == {"body.0": "cuda:2", "body.1": "cuda:2", "body.2": "cpu", "head": "cpu"}
    assert device_map(plan, {"d0": 0, "d1": 0}) == {"": 0}


def test_one_device_is_one_entry() -> None:
    ops = (stored("a.w", 8), stored("b.w", 8))
    assert device_map(plan_of({"a.w": 0, "b.w": 0}, ops)) == {"": 0}


# The root module has a parameter of its own: "" stands for it, and the others are named beside it.
def test_parameters_of_the_root_module() -> None:
    ops = (stored("scale", 8), stored("a.w", 8))
    assert device_map(plan_of({"scale": 1, "a.w": 0}, ops)) == {"": 1, "a": 0}


def test_most_bytes_decide_and_exact_refuses() -> None:
    ops = (stored("a.w", 100), stored("a.b", 8), stored("a.running", 8, "buffer"))
    plan = plan_of({"a.w": 1, "a.b": 0, "a.running": 0}, ops)
    assert device_map(plan) == {"": 1}
    assert spread_modules(plan) == {"a": ("d1", "d0")}
    with pytest.raises(MismatchError, match="module 'a' is spread over d1, d0, which no device map can say; use the r"):
        device_map(plan, rule="exact")


def test_exact_looks_at_forward_ops_too() -> None:
    ops = (stored("a.w", 8), Op("mm", "aten.mm", 1.0, phase="forward", module="a"), stored("b.w", 8))
    backward = Op("mm_back", "aten.mm", 1.0, phase="backward", module="a")
    plan = plan_of({"a.w": 0, "mm": 0, "b.w": 1, "mm_back": 1}, (*ops, backward))
    assert device_map(plan, rule="exact") == {"a": 0, "b": 1}
    with pytest.raises(MismatchError, match="module 'a' is spread"):
        device_map(plan_of({"a.w": 0, "mm": 1, "b.w": 1}, ops), rule="exact")


def test_what_cannot_be_exported() -> None:
    plan = plan_of({"a.w": 0}, (stored("a.w", 8),))
    with pytest.raises(InputError, match="rule is 'best'; use one of majority, exact"):
        device_map(plan, rule="best")
    with pytest.raises(InputError, match="the plan's device 'd1' is not named"):
        device_map(plan, {"d0": 0})
    empty = random_plan(OpGraph((Op("x", "test"), Op("y", "test")), (Edge("x", "y", 1),)), 2)
    with pytest.raises(InputError, match="no parameters or buffers"):
        device_map(empty)


def test_cpu_devices_are_all_called_cpu() -> None:
    plan = random_plan(OpGraph((stored("a.w", 8), stored("b.w", 8)), ()), 2)
    assert device_map(plan) == {"": "cpu"}
