"""How long issuing an op takes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from dlplacer.runtime.profile.short_ops import times_for_planning, without_turns
from frontend.torch.small_models import build

from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.device_timeline import DeviceTimeline
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.profile import dispatch_time, short_ops
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


def test_short_ops_take_their_time_alone() -> None:
    together = {"cpu-core": {"short": 30e-6, "long": 500e-6}}
    alone = {"cpu-core": {"short": 4e-6, "long": 400e-6}}
    assert without_turns(together, alone, 28e-6) == {"cpu-core": {"short": 4e-6, "long": 500e-6}}


# The middle one waits 40 us for the interpreter, and so does the long one; what that loses besides is bandwidth.
def test_longer_ops_do_not_keep_their_wait_for_the_interpreter() -> None:
    together = {"cpu-core": {"short": 30e-6, "middle": 90e-6, "long": 1040e-6, "quick": 210e-6}}
    alone = {"cpu-core": {"short": 4e-6, "middle": 50e-6, "long": 900e-6, "quick": 200e-6}}
    kept = without_turns(together, alone, 28e-6)["cpu-core"]
    assert kept == pytest.approx({"short": 4e-6, "middle": 50e-6, "long": 1000e-6, "quick": 200e-6})


# Two cores with turns of 14 us: ops below 28 us alone are timed alone. Both ops take 504 us instead of 404, and 530
# with what the short one waits. Where ops are short on average, processes say what they take beside each other.
@pytest.mark.parametrize(
    ("long_s", "beside", "expected"),
    [
        (400e-6, True, ({"short": 4e-6, "long": 500e-6}, 504 / 404)),
        (300e-6, False, ({"short": 4e-6, "long": 500e-6}, 504 / 304)),
        (300e-6, True, ({"short": 6e-6, "long": 600e-6}, 1.5)),
    ],
    ids=["long ops", "no processes", "processes"],
)
def test_times_for_planning_know_what_short_ops_take_alone(
    long_s: float, beside: bool, expected: tuple[dict[str, float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[int, ...], int, int]] = []
    together, alone = {"short": 30e-6, "long": 500e-6}, {"short": 4e-6, "long": long_s}

    def in_turn(profiler: object, counts: tuple[int, ...], steps: int, warmup: int, on_step: Any) -> Any:
        asked.append((counts, steps, warmup))
        on_step(0, 2)
        return [{"cpu-core": alone if count == 1 else together} for count in counts]

    monkeypatch.setattr(short_ops, "Profiler", lambda job, captured, devices: None)
    monkeypatch.setattr(short_ops, "profiled_in_turn", in_turn)
    monkeypatch.setattr(short_ops, "turn_time_s", lambda devices: 14e-6)
    by_processes = {"short": 4e-6, "long": 400e-6}, {"short": 6e-6, "long": 600e-6}
    monkeypatch.setattr(short_ops, "times_beside_processes", lambda *arguments: by_processes if beside else None)
    cores = cast(Any, [SimpleNamespace(torch_device=torch.device("cpu"), type="cpu-core")] * 2)
    captured = cast(Any, SimpleNamespace(graph=SimpleNamespace(ops=())))
    heard: list[tuple[str, float]] = []
    found = times_for_planning(cast(Any, None), captured, cores, 3, 1, lambda *told: heard.append(told))
    assert found.of_ops == {"cpu-core": expected[0]}
    factors = found.contention_factor["cpu-core"]
    assert factors == {"threads": pytest.approx(530e-6 / (4e-6 + long_s)), "processes": pytest.approx(expected[1])}
    assert heard == [("step 1 of 2", 0.0)]
    single = times_for_planning(cast(Any, None), captured, cores[:1])
    assert (single.of_ops["cpu-core"], single.contention_factor) == (alone, {})
    assert asked == [((2, 1), 3, 1), ((1,), 7, 2)]
