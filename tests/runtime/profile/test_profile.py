"""Measured times of ops and links."""

import copy
import time
from dataclasses import replace
from typing import cast

import pytest
import torch
from frontend.torch.small_models import build, build_with, dropout
from runtime.random_plans import needs_two_cores
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.runtime.devices import RuntimeDevice, open_devices
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.executor.run import DeviceTimeline, StepInputs
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.op_times import (
    Profiler,
    StepSample,
    measured_types,
    profile_ops,
    profiled_in_turn,
    recorded_times,
    times_for_planning,
    with_measured_times,
)
from dlplacer.runtime.profile.statistic import settled, typical


@pytest.fixture
def cores() -> list[RuntimeDevice]:
    devices = open_devices([f"cpu:{index}" for index in range(min(2, len(usable_cores())))])
    yield devices
    for device in devices:
        device.close()


def captured(job: Job) -> Captured:
    return capture_job(job, default_rewrites())


@pytest.mark.parametrize("name", ["branches", "recurrent", "keywords"])
def test_every_op_has_a_time_on_the_type_of_the_devices(name: str, cores: list[RuntimeDevice]) -> None:
    job = build(name)
    graph = captured(job).graph
    times = profile_ops(job, captured(job), cores, steps=2, warmup=1)
    assert list(times) == ["cpu-core"]
    assert times["cpu-core"].keys() == {op.id for op in graph.ops}
    assert all(0 <= seconds < 120 for seconds in times["cpu-core"].values())
    assert all(times["cpu-core"][op.id] > 0 for op in graph.ops if op.kind.startswith("aten"))


# The program begins at 10, ops end at these marks. An op's time goes from the end of the op before it: dispatch is part
# of it, and the times add up to the step from its first mark to its last.
def test_times_add_up_to_the_step() -> None:
    class Clock:
        def __init__(self) -> None:
            self.times = [10.0, 12.0, 15.0, 15.5]

        def now(self) -> float:
            return self.times.pop(0)

        def elapsed_s(self, begin: float, end: float) -> float:
            return end - begin

    clock, timeline = cast(RuntimeDevice, Clock()), DeviceTimeline()
    timeline.begin(clock)
    for op in "abc":
        timeline.finish(op, clock)
    found = recorded_times(clock, StepState(cast(StepInputs, None), {}, {"all": timeline}))
    assert found == {"a": 2.0, "b": 3.0, "c": 0.5}
    assert sum(found.values()) == 15.5 - 10.0


def test_all_steps_together_take_no_less_than_their_ops(cores: list[RuntimeDevice]) -> None:
    job = build("branches")
    begin = time.perf_counter()
    times = profile_ops(job, captured(job), cores[:1], steps=1, warmup=0)["cpu-core"]
    assert 0 < sum(times.values()) < time.perf_counter() - begin


@pytest.mark.parametrize("optimizer", [None, "adam"])
def test_nothing_of_the_module_changes(optimizer: str | None, cores: list[RuntimeDevice]) -> None:
    job = replace(build("convolutions"), optimizer=optimizer)
    before = copy.deepcopy(job.module.state_dict())
    times = profile_ops(job, captured(job), cores, steps=1, warmup=1)["cpu-core"]
    for name, tensor in job.module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in job.module.parameters())
    if optimizer:
        assert times["fc.weight.update"] > 0


def test_random_ops_leave_the_users_generator_alone(cores: list[RuntimeDevice]) -> None:
    job = build_with(dropout)
    before = torch.random.get_rng_state()
    profile_ops(job, captured(job), cores, steps=1, warmup=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_module_without_data_cannot_be_profiled(cores: list[RuntimeDevice]) -> None:
    job = Job(nn.Linear(8, 5, device="meta"), (torch.empty(4, 8, device="meta"),), mode="infer")
    with pytest.raises(InputError, match="'weight' is on the meta device and has no data"):
        profile_ops(job, captured(job), cores)


def test_measured_times_stand_beside_others() -> None:
    graph = captured(build("linear")).graph
    graph = replace(graph, ops=tuple(replace(op, time_s={"V100": 1.0}) for op in graph.ops))
    assert measured_types(graph) == ()
    once = with_measured_times(graph, {"cpu-core": {op.id: 2.0 for op in graph.ops}})
    twice = with_measured_times(once, {"A100": {op.id: 3.0 for op in graph.ops}})
    assert twice.ops[0].time_s == {"V100": 1.0, "cpu-core": 2.0, "A100": 3.0}
    assert measured_types(twice) == ("A100", "cpu-core")
    assert measured_types(once) == ("cpu-core",)


def test_steps_alone_and_together_alternate(cores: list[RuntimeDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    step = Profiler.step

    def counted(self: Profiler, count: int | None = None) -> tuple[StepSample, ...]:
        samples = step(self, count)
        assert len(samples) == count
        asked.append(len(samples))
        return samples

    monkeypatch.setattr(Profiler, "step", counted)
    monkeypatch.setattr("dlplacer.runtime.profile.op_times._SHORT_STEPS", 1)
    monkeypatch.setattr("dlplacer.runtime.profile.op_times._SETTLED_S", 0.0)
    job = build("branches")
    profiler = Profiler(job, captured(job), cores)
    together, alone = profiled_in_turn(profiler, (len(cores), 1), 2, 1, lambda done, total: None)
    assert asked == [len(cores), 1] * 4
    assert together["cpu-core"].keys() == alone["cpu-core"].keys() == captured(job).graph.index.keys()


@pytest.mark.parametrize("count", [1, 2])
def test_times_for_planning_cover_every_op_and_tell_their_progress(count: int, cores: list[RuntimeDevice]) -> None:
    job, shares = build("branches"), []
    found = times_for_planning(job, captured(job), cores[:count], 2, 1, lambda what, share: shares.append(share))
    assert found["cpu-core"].keys() == captured(job).graph.index.keys()
    assert shares == pytest.approx([0, 1 / 3, 2 / 3])


@needs_two_cores
def test_links_between_cores_hand_tensors_over_without_copying(cores: list[RuntimeDevice]) -> None:
    topology = measured_topology(cores)
    assert [(device.id, device.type) for device in topology.devices] == [("cpu:0", "cpu-core"), ("cpu:1", "cpu-core")]
    (link,) = topology.links
    assert (link.source, link.target) == ("cpu:0", "cpu:1")
    assert 0 < link.latency_s < 60
    assert link.bytes_per_s == 1e15


def test_one_device_has_no_links(cores: list[RuntimeDevice]) -> None:
    assert measured_topology(cores[:1]).links == ()


# The first of four is left out as warming up; an interruption moves the median by one rank.
@pytest.mark.parametrize(("times", "expected"), [([5.0], 5.0), ([90.0, 1.0, 3.0, 80.0], 3.0), ([1.0, 2.0], 1.5)])
def test_a_settled_time_ignores_warming_up_and_interruptions(times: list[float], expected: float) -> None:
    assert settled(times) == expected


# Steps of 3, 4, 5, 9 and 100 seconds: the shortest and the longest are left out.
@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([7.0], 7.0),
        ([2.0, 4.0], 3.0),
        ([1.0, 2.0, 90.0], 2.0),
        ([9.0, 0.0, 3.0, 1.0], 2.0),
        ([1, 1, 1, 2, 2, 2, 0], 7 / 5),
        ([*range(9), 100.0, 200.0, -300.0], 4.5),
    ],
)
def test_a_trimmed_mean_leaves_out_an_eighth_at_either_end(values: list[float], mean: float) -> None:
    assert trimmed_mean(values) == pytest.approx(mean)


def test_typical_times_sum_up_to_the_steps_of_middle_length() -> None:
    steps = [
        {"a": 1.0, "b": 4.0},
        {"a": 50.0, "b": 50.0},
        {"a": 1.0, "b": 2.0},
        {"a": 2.0, "b": 2.0},
        {"a": 6.0, "b": 3.0},
    ]
    assert typical(steps) == {"a": 3.0, "b": 3.0}
    assert typical(steps[:1]) == steps[0]
