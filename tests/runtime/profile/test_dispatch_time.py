"""How long issuing an op takes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from frontend.torch.small_models import build

from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.executor.run import DeviceTimeline
from dlplacer.runtime.profile import dispatch_time
from dlplacer.runtime.profile.dispatch_time import HostTimed, dispatch_time_s, issue_times_s, launch_time_s, turn_time_s
from dlplacer.runtime.profile.op_times import StepSample, recorded_times


def test_every_op_that_takes_time_counts() -> None:
    job = build("branches")
    captured = capture_job(job, default_rewrites())
    durations_s = {op.id: 1.0 if op.kind.startswith("aten") else 0.0 for op in captured.graph.ops}
    device = CpuDevice(0)
    try:
        assert 0 < dispatch_time_s(job, captured, device, durations_s) < 120
        assert dispatch_time_s(job, captured, device, dict.fromkeys(durations_s, 0.0)) == 0.0
    finally:
        device.close()


# Ops are issued at 1, 3 and 6 ns behind the start; the second takes no time on the device and is left out.
def test_issue_times_go_from_one_issue_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    device = HostTimed(cast(RuntimeDevice, SimpleNamespace(name="queue")))
    assert device.name == "queue"
    times = iter([100, 101, 103, 106])
    monkeypatch.setattr(HostTimed, "now", lambda self: next(times))
    timeline = DeviceTimeline()
    timeline.begin(cast(RuntimeDevice, device))
    for op in "abc":
        timeline.finish(op, cast(RuntimeDevice, device))
    state = StepState(cast(Any, None), {}, {"all": timeline})
    found = issue_times_s(recorded_times(cast(RuntimeDevice, device), state), {"a": 1.0, "b": 0.0, "c": 1.0})
    assert found == pytest.approx([1e-9, 3e-9])


# Two cores take turns; whatever the machine, a turn takes no longer than the chain would on one core for each op.
def test_turns_of_cores_are_timed() -> None:
    cores = [CpuDevice(0), CpuDevice(0)]
    try:
        assert 0 < turn_time_s(cores) < 0.1
        assert turn_time_s(cores[:1]) == 0.0
        assert 0 < launch_time_s(cores[0]) < 0.1
    finally:
        for core in cores:
            core.close()


# Steps of 400 ops on three devices, the slowest in 6 ms: an op starts every 6 ms ÷ 1,200 = 5 us.
def test_a_turn_is_the_slowest_chain_over_all_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Steady:
        def __init__(self, *arguments: object) -> None:
            pass

        def step(self) -> list[StepSample]:
            return [StepSample({"a": seconds, "b": seconds}, 0.0) for seconds in (1e-3, 3e-3, 2e-3)]

    monkeypatch.setattr(dispatch_time, "Profiler", Steady)
    assert turn_time_s(cast(Any, [None] * 3)) == pytest.approx(5e-6)
