"""Turns at being alone, which rounds count, and what recording costs; with made steps."""

from collections.abc import Sequence

import pytest

from dlplacer.measure.fidelity.op_samples import AloneSample, OpSampler, with_shared_waits
from dlplacer.measure.fidelity.step_profiler import PlainStep
from dlplacer.runtime.profile.op_times import StepSample

PLACEMENT, POSITION = {"x": "d0", "y": "d1"}, {"d0": 0, "d1": 1}


class MadeSteps:
    """On device 0 ops take 1 and 2 s, on device 1 ten times as long; twice as long side by side."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.factor = self.plain_share = 1.0
        self.host_s = 0.5
        self.plain_host_s: float | None = 0.5

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        self.calls.append(("recorded", tuple(positions)))
        return self._samples(positions)

    def _samples(self, positions: Sequence[int]) -> list[StepSample]:
        slower = self.factor * (2.0 if len(positions) > 1 else 1.0)
        return [StepSample({"x": slower * 10**at, "y": slower * 2 * 10**at}, host_s=self.host_s) for at in positions]

    def plain_steps(self, positions: Sequence[int]) -> list[PlainStep]:
        self.calls.append(("plain", tuple(positions)))
        return [
            PlainStep(
                self.plain_share * sum(sample.op_times_s.values()) + (self.plain_host_s or 0.0), self.plain_host_s
            )
            for sample in self._samples(positions)
        ]


def test_devices_take_turns_and_are_then_together() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [0, 1])
    for _ in range(3):
        assert sampler.complete == (len(sampler.together) >= 2)
        sampler.untimed_alone()
        sampler.step_alone()
        sampler.step_together()
    turns = [("recorded", (at,)) for at in (0, 0, 1, 1, 0, 0)]  # the untimed step is of the same kind
    assert [call for call in steps.calls if len(call[1]) == 1] == turns  # ops of seconds: recording costs them nothing
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


def test_ops_too_short_for_the_clock_say_nothing_about_contention() -> None:
    steps = MadeSteps()
    steps.factor = 0.0
    sampler = OpSampler(steps, [0, 1])
    for _ in range(2):
        sampler.step_alone()
        sampler.step_together()
    found = sampler.own_times(2, POSITION, PLACEMENT)
    assert found.alone == found.together == {"x": 0.0, "y": 0.0}
    assert found.contention == []


def test_a_plan_on_one_device_is_sampled_alone() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [1])
    for _ in range(2):
        sampler.step_alone()
    found = sampler.own_times(2, POSITION, {"x": "d1", "y": "d1"})
    assert found.samples == [{"x": 10.0, "y": 20.0}] * 2
    assert found.contention == []
    assert {positions for _, positions in steps.calls} == {(1,)}


# Two ops of 0.1 and 0.2 ms; recording makes the step of 0.15 ms twice as long, more than it may for two ops.
def test_alone_a_step_is_as_long_as_when_it_is_not_recorded() -> None:
    steps = MadeSteps()
    steps.factor, steps.plain_share, steps.host_s, steps.plain_host_s = 1e-4, 0.5, 5e-5, 2e-5
    sampler = OpSampler(steps, [0])
    for _ in range(2):
        sampler.step_alone()
    found = sampler.own_times(2, POSITION, {"x": "d0", "y": "d0"})
    assert found.host_s == pytest.approx(2e-5)
    for sample in found.samples:
        assert sum(sample.values()) == pytest.approx(1.5e-4)
        assert sample["y"] / sample["x"] == pytest.approx(2, rel=0.05)
    assert steps.calls.count(("plain", (0,))) == 2 * 5
    # Of a single device these are the samples: whatever recording costs.
    assert sum(found.alone.values()) == pytest.approx(1.5e-4)


def test_another_process_has_the_turn() -> None:
    steps = MadeSteps()
    sampler = OpSampler(steps, [None, 0])
    sampler.step_alone()
    sampler.untimed_alone()
    assert steps.calls == [("recorded", (0,))]
    sampler.step_alone()
    sampler.step_together()
    sampler.step_together()
    assert sampler.own_times(2, POSITION, PLACEMENT).plain_s == [(1, 3.5)]


@pytest.mark.parametrize(("plain_s", "expected_s"), [(0.9e-3, 1e-6), (1.2e-3, 0.0), (0.1e-3, 6e-6)])
def test_what_recording_costs_is_bounded(plain_s: float, expected_s: float) -> None:
    sample = AloneSample(0, StepSample(dict.fromkeys(map(str, range(100)), 1e-5), 0.0), PlainStep(plain_s, 0.0))
    assert sample.recording_s == pytest.approx(expected_s)


# What runs later than it is given tells nothing of the host's part, which is then that of the recorded step.
def test_a_device_that_runs_later_has_the_host_s_part_of_recorded_steps() -> None:
    steps = MadeSteps()
    steps.factor, steps.host_s, steps.plain_host_s = 1e-4, 2e-4, None
    sampler = OpSampler(steps, [0])
    sampler.step_alone()
    found = sampler.own_times(1, POSITION, {"x": "d0", "y": "d0"})
    assert found.host_s == 2e-4
    assert sum(found.samples[0].values()) == pytest.approx(3e-4)


# Ops of 10 and 20 us alone; side by side the second device has all the waiting, of 120 us in this step.
def test_short_ops_share_their_waiting() -> None:
    alone = {0: {"x": 1e-5, "y": 2e-5, "long": 1e-3}, 1: {"x": 1e-5, "y": 2e-5}}
    together = {0: {"x": 1e-5, "y": 2e-5, "long": 2e-3}, 1: {"x": 3e-5, "y": 12e-5}}
    found = with_shared_waits(alone, together)
    assert found[0] == pytest.approx({"x": 4e-5, "y": 5e-5, "long": 2e-3})
    assert found[1] == pytest.approx({"x": 4e-5, "y": 5e-5})
    assert with_shared_waits({0: {"long": 1e-3}}, {0: {"long": 2e-3}}) == {0: {"long": 2e-3}}


# Steps take half as long when nothing is recorded; the ops of device 0 are short.
def test_recording_lengthens_what_is_side_by_side() -> None:
    steps = MadeSteps()
    steps.factor, steps.plain_share, steps.host_s, steps.plain_host_s = 1e-4, 0.5, 5e-5, 2e-5
    sampler = OpSampler(steps, [0, 1])
    for _ in range(2):
        sampler.step_alone()
        sampler.step_together()
    found = sampler.own_times(2, POSITION, PLACEMENT)
    assert found.together == pytest.approx({"x": 1e-4, "y": 2e-3})
    assert dict(found.plain_s) == pytest.approx({0: 1.7e-4, 1: 3.05e-3})  # ops of milliseconds: recording is nothing
    assert found.alone == pytest.approx({"x": 1e-4 - 6e-6, "y": 2e-3})
