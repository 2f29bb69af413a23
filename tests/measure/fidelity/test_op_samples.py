"""Turns at being alone, which rounds count, and what recording costs; with made steps."""

from collections.abc import Sequence

import pytest

from dlplacer.measure.fidelity.op_samples import AloneSample, OpSampler
from dlplacer.runtime.profile.op_times import StepSample

PLACEMENT, POSITION = {"x": "d0", "y": "d1"}, {"d0": 0, "d1": 1}


class MadeSteps:
    """On device 0 ops take 1 and 2 s, on device 1 ten times as long; twice as long side by side."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.factor = 1.0

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        self.calls.append(("recorded", tuple(positions)))
        slower = self.factor * (2.0 if len(positions) > 1 else 1.0)
        return [StepSample({"x": slower * 10**at, "y": slower * 2 * 10**at}, host_s=0.5) for at in positions]

    def plain_step(self, position: int) -> None:
        self.calls.append(("plain", (position,)))


def test_devices_take_turns_and_are_then_together() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [0, 1])
    for _ in range(3):
        assert sampler.complete == (len(sampler.together) >= 2)
        sampler.untimed_alone()
        sampler.step_alone()
        sampler.step_together()
    turns = [("plain", (at,)) for at in (0, 1, 0)]
    assert [call for call in steps.calls if call[0] == "plain"] == turns  # ops of seconds: recording costs them nothing
    found = sampler.own_times(3, POSITION, PLACEMENT)
    assert found.alone == {"x": 1.0, "y": 20.0}
    assert found.together == {"x": 2.0, "y": 40.0}
    assert found.samples == [{"x": 2.0, "y": 40.0}] * 3
    assert found.plain_s == [(0, 3.5), (2, 3.5), (1, 30.5)]
    assert found.contention == [2.0] * 3
    assert found.host_s == 0.5


def test_only_the_last_rounds_count() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [0, 1])
    for factor in (100.0, 100.0, 1.0, 1.0):
        steps.factor = factor
        sampler.step_alone()
        sampler.step_together()
    assert sampler.own_times(2, POSITION, PLACEMENT).alone == {"x": 1.0, "y": 20.0}
    # of one round only device 1 had the turn; device 0 is known from before
    found = sampler.own_times(1, POSITION, PLACEMENT)
    assert (found.alone, found.plain_s) == ({"x": 1.0, "y": 20.0}, [(0, 30.5)])


def test_a_plan_on_one_device_is_sampled_alone() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [1])
    for _ in range(2):
        sampler.step_alone()
    found = sampler.own_times(2, POSITION, {"x": "d1", "y": "d1"})
    assert found.samples == [{"x": 10.0, "y": 20.0}] * 2
    assert found.contention == []
    assert {positions for _, positions in steps.calls} == {(1,)}


def test_another_process_has_the_turn() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [None, 0])
    sampler.step_alone()
    sampler.untimed_alone()
    assert steps.calls == [("plain", (0,))]
    sampler.step_alone()
    sampler.step_together()
    sampler.step_together()
    assert sampler.own_times(2, POSITION, PLACEMENT).plain_s == [(1, 3.5)]


@pytest.mark.parametrize(("plain_s", "expected_s"), [(0.9e-3, 1e-6), (1.2e-3, 0.0), (0.1e-3, 3e-6)])
def test_what_recording_costs_is_bounded(plain_s: float, expected_s: float) -> None:
    sample = AloneSample(0, StepSample(dict.fromkeys(map(str, range(100)), 1e-5), 0.0), plain_s)
    assert sample.recording_s == pytest.approx(expected_s)
