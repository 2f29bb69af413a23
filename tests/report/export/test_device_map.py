"""Plans as device maps of Hugging Face."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from runtime.random_plans import machine, random_plan
from torch import nn

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Device
from dlplacer.report.export.device_map import device_map, overfull_devices


def plan_of(homes: dict[str, int], ops: tuple[Op, ...], capture: Mapping[str, Any] | None = None) -> Plan:
    """A plan for these ops, one after another, on devices d0 and d1."""
    base = random_plan(OpGraph((Op("x", "test"),), ()), 2)
    entries = tuple(ScheduledOp(op.id, f"d{homes[op.id]}", float(i), i + 1.0) for i, op in enumerate(ops))
    gpus = replace(machine(2), devices=(Device("d0", "V100"), Device("d1", "V100")))
    return replace(
        base, graph=OpGraph(ops, (), capture=capture), topology=gpus, ops=entries, makespan_s=float(len(ops))
    )


def stored(name: str, size_bytes: int, kind: str = "parameter") -> Op:
    return Op(name, kind, 0.0, weight_bytes=size_bytes, phase="forward", module=name.rpartition(".")[0] or None)


# body.0 and body.1 are on 0, body.2 on 1, head on 1: body cannot stand for its parts, so each of them is named.
def test_the_fewest_modules_are_named() -> None:
    ops = tuple(stored(name, 8) for name in ("body.0.weight", "body.1.weight", "body.1.bias", "body.2.w", "head.fc.w"))
    plan = plan_of({"body.0.weight": 0, "body.1.weight": 0, "body.1.bias": 0, "body.2.w": 1, "head.fc.w": 1}, ops)
    assert device_map(plan) == {"body.0": 0, "body.1": 0, "body.2": 1, "head": 1}


def with_ties(plan: Plan, ties: dict[str, str]) -> Plan:
    return replace(plan, graph=replace(plan.graph, capture={"ties": ties}))


# head.weight is wte.weight: both modules go where most of their bytes are, 2 · 64 + 8 on d0 against 100 on d1.
def test_tied_tensors_are_on_one_device() -> None:
    ops = (stored("wte.weight", 64), stored("wte.scale", 8), stored("head.bias", 100), stored("mid.w", 8))
    plan = plan_of({"wte.weight": 0, "wte.scale": 0, "head.bias": 1, "mid.w": 1}, ops)
    assert device_map(with_ties(plan, {"head.weight": "wte.weight"})) == {"wte": 0, "head": 0, "mid": 1}
    assert device_map(plan) == {"wte": 0, "head": 1, "mid": 1}
    other_name = with_ties(plan, {"wte.weight": "first.weight", "head.weight": "first.weight"})
    assert device_map(other_name) == {"wte": 0, "head": 0, "mid": 1, "first": 0}


# Within 100 bytes on each device in the plan, which puts 60 of a's 120 on each; the map puts all of them on one.
def test_a_map_that_exceeds_a_memory_says_so() -> None:
    plan = plan_of({"a.w": 0, "a.v": 1}, (stored("a.w", 60), stored("a.v", 60)))
    devices = tuple(replace(device, memory_bytes=100) for device in plan.topology.devices)
    small = replace(plan, topology=replace(plan.topology, devices=devices))
    assert [("d0" in line, "120 B" in line) for line in overfull_devices(small)] == [(True, True)]
    assert overfull_devices(plan) == ()


class Tied(nn.Module):
    """Layers that share a weight and a bias, a parameter and buffers of the root, a module that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.layer2.weight, self.layer2.bias = self.layer1.weight, self.layer1.bias
        self.scale, self.unused = nn.Parameter(torch.ones(8)), nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.zeros(8))
        self.out.register_buffer("average", self.layer1.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out.average.sum() + self.out(self.layer2(torch.relu(self.layer1(x)))) * self.scale + self.shift


@pytest.mark.parametrize("seed", range(6))
def test_maps_of_captured_models_cover_every_tensor_once(seed: int) -> None:
    model = Tied()
    graph = dp.capture(dp.Job(model, args=(torch.randn(2, 8),), mode="infer"))
    draw = random.Random(seed)
    mapping = device_map(plan_of({op.id: draw.randrange(2) for op in graph.ops}, graph.ops, graph.capture))
    homes: dict[int, set[int | str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        covering = [path for path in mapping if path in ("", name) or name.startswith(f"{path}.")]
        assert len(covering) == 1
        homes.setdefault(tensor.untyped_storage().data_ptr(), set()).add(mapping[covering[0]])
    assert {len(where) for where in homes.values()} == {1}


def test_most_bytes_decide_where_a_module_is_spread() -> None:
    ops = (stored("a.w", 100), stored("a.b", 8), stored("a.running", 8, "buffer"))
    plan = plan_of({"a.w": 1, "a.b": 0, "a.running": 0}, ops)
    assert device_map(plan) == {"": 1}
    assert json.loads(dp.export(plan, "accelerate").text) == {"": 1}
