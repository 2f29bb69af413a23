"""Predictions: the overlap of ops, and replays under made times."""

from collections.abc import Sequence
from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
from frontend.torch.small_models import build
from hypothesis import given
from hypothesis import strategies as st
from report.plot.plans import diamond
from runtime.random_plans import random_plan

from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Link
from dlplacer.frontend import capture
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.prediction import Prediction, Predictor, overlap_shares, used_devices
from dlplacer.measure.steps import OneProcess, PlacedJob
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.op_times import with_measured_times

OP_S = 1e-3


def plan(spans: dict[str, tuple[str, float, float]]) -> Plan:
    """Ops that ran there and then; the graph does not matter."""
    ops = tuple(ScheduledOp(op, *when) for op, when in spans.items())
    return replace(diamond(), ops=ops, transfers=(), memory={})


def test_shares_by_hand() -> None:
    ran = plan({"x": ("a", 0, 4), "z": ("a", 4, 6), "y": ("b", 3, 5), "w": ("b", 9, 10), "p": ("a", 2, 2)})
    assert overlap_shares(ran, {"a", "b"}) == pytest.approx({"x": 1 / 4, "z": 1 / 2, "y": 1, "w": 0})
    assert overlap_shares(ran, {"a"}) == {}


@st.composite
def schedules(draw: st.DrawFn) -> Plan:
    spans = {}
    for device in "abc":
        marks = sorted(draw(st.sets(st.integers(0, 40), min_size=0, max_size=12)))
        for number, (start, end) in enumerate(zip(marks[::2], marks[1::2], strict=False)):
            spans[f"{device}{number}"] = (device, float(start), float(end))
    return plan(spans)


# Against looking at every unit of time.
@given(schedules())
def test_shares_are_means_over_time(ran: Plan) -> None:
    busy = {device: np.zeros(40) for device in "abc"}
    for entry in ran.ops:
        busy[entry.device][int(entry.start_s) : int(entry.end_s)] = 1
    found = overlap_shares(ran, {"a", "b", "c"})
    for entry in ran.ops:
        others = sum(busy[other] for other in "abc" if other != entry.device) / 2
        assert found[entry.op] == pytest.approx(others[int(entry.start_s) : int(entry.end_s)].mean())


class MadeSteps:
    """The ops of a device, which take a millisecond each, `slower` while another device works, and long when cold."""

    def __init__(self, ops: Sequence[str], slower: float) -> None:
        self.ops, self.slower, self.warm = ops, slower, set[str]()

    def cold(self, call: str) -> float:
        first = call not in self.warm
        self.warm.add(call)
        return 100.0 if first else 1.0

    def recorded(self) -> dict[str, float]:
        # Recording costs as much as the op.
        return dict.fromkeys(self.ops, 2 * OP_S * self.cold("recorded"))

    def plain(self) -> float:
        """Devices run alone on the caller's thread, and together on others."""
        together = current_thread() is not main_thread()
        return len(self.ops) * OP_S * (self.slower if together else 1.0) * self.cold("plain")


def predicted(plan: Plan, slower: float) -> tuple[Prediction, OneProcess]:
    """After a round of made steps; tensors change devices in no time."""
    job = build("branches")
    captured = capture_job(job, default_rewrites())
    devices = {device.id: RuntimeDevice(device.id, "cpu-core") for device in plan.topology.devices}
    try:
        module = PlacedModule(job, plan, captured, devices)
        group = OneProcess(devices)
        links = tuple(Link(link.source, link.target, 1e15, 0.0) for link in group.topology.links)
        group.topology = replace(group.topology, links=links)
        used = used_devices(plan)
        own: Any = {name: MadeSteps(plan.order[name], slower) for name in devices if name in used}
        predictor = Predictor(PlacedJob(module, [job]), group, own)
        predictor.warm_up()
        predictor.sample()
        return predictor.predict(host_s=0.25), group
    finally:
        for device in devices.values():
            device.close()


def replayed_s(plan: Plan, group: OneProcess, op_s: float) -> float:
    plan = replace(plan, options=replace(plan.options, step="joint"))
    graph = with_measured_times(plan.graph, {"cpu-core": dict.fromkeys(plan.graph.index, op_s)})
    return replay_plan(plan, graph, group.topology).makespan_s


def test_a_plan_lies_between_ops_alone_and_ops_side_by_side() -> None:
    plan = random_plan(capture(build("branches")), 2, seed=3)
    found, group = predicted(plan, 1.0)
    assert found.contention == pytest.approx(1.0)
    assert found.alone_s == found.busy_s == pytest.approx(len(plan.ops) * OP_S)
    assert found.plan.makespan_s + found.host_s == pytest.approx(replayed_s(plan, group, OP_S) + 0.25)
    found, group = predicted(plan, 2.0)
    assert found.contention == pytest.approx(2.0)
    # Ops overlap for some of the time, and not for all.
    assert replayed_s(plan, group, OP_S) < found.plan.makespan_s < replayed_s(plan, group, 2 * OP_S)
    assert found.alone_s < found.busy_s < 2 * found.alone_s


def test_a_device_that_the_plan_leaves_alone_is_not_profiled() -> None:
    two, alone = (random_plan(capture(build("branches")), count) for count in (2, 1))
    there = two.topology.devices[1].id
    ops = tuple(replace(entry, device=there) for entry in alone.ops)
    plan = replay_plan(replace(two, ops=ops, transfers=()), two.graph, two.topology)
    assert used_devices(plan) == {there}
    found, _ = predicted(plan, 5.0)
    assert found.plan.makespan_s + found.host_s == pytest.approx(len(plan.ops) * OP_S + 0.25)
    assert found.contention == 1.0
