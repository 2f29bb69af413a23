"""Measured times of ops, links and issues."""

import copy
from dataclasses import replace

import pytest
import torch
from frontend.torch.small_models import build, build_with, dropout
from runtime.random_plans import needs_two_cores, random_plan
from torch import nn

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import flat_inputs
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.machines.cores import usable_cores
from dlplacer.runtime.devices import RuntimeDevice, open_devices
from dlplacer.runtime.profile.machine_times import measured_topology
from dlplacer.runtime.profile.op_times import (
    OwnStep,
    measured_types,
    profile_ops,
    side_by_side,
    timed_capture,
    typical,
    with_measured_times,
)


@pytest.fixture
def cores() -> list[RuntimeDevice]:
    devices = open_devices([f"cpu:{index}" for index in range(min(2, len(usable_cores())))])
    yield devices
    for device in devices:
        device.close()


def captured(job: Job) -> Captured:
    return capture_job(job, default_rewrites())


@pytest.mark.parametrize(
    ("name", "memory_bytes"), [("recurrent", None), ("keywords", 1)], ids=["recurrent, whole", "keywords, op by op"]
)
def test_every_op_has_a_time_whatever_fits_at_once(
    name: str, memory_bytes: int | None, cores: list[RuntimeDevice]
) -> None:
    job = build(name)
    shares: list[float] = []
    times = profile_ops(job, captured(job), cores, 2, 1, lambda what, share: shares.append(share), memory_bytes)
    assert list(times) == ["cpu-core"]
    assert times["cpu-core"].keys() == captured(job).graph.index.keys()
    assert all(times["cpu-core"][op.id] > 0 for op in captured(job).graph.ops if op.kind.startswith("aten"))
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] < 1


# Whatever a device gets from elsewhere: its own ops run with tensors of the same shapes.
@pytest.mark.parametrize("name", ["recurrent", "loss inside"])
@pytest.mark.parametrize("seed", range(2))
def test_ops_of_a_device_run_without_their_neighbours(name: str, seed: int, cores: list[RuntimeDevice]) -> None:
    job = replace(build(name), optimizer="adam" if seed == 0 else None)
    step, before = captured(job), copy.deepcopy(job.module.state_dict())
    plan = random_plan(step.graph, 2, seed)
    steps = [
        OwnStep(step, plan.order, home, cores[0], job_tensors(job), flat_inputs(job), job=job) for home in plan.order
    ]
    for own, recorded in zip(steps, side_by_side(OwnStep.recorded, steps), strict=True):
        assert list(recorded) == list(plan.order[own.home])
        assert all(seconds >= 0 for seconds in recorded.values())
        assert own.plain() >= 0
    for key, tensor in job.module.state_dict().items():
        assert torch.equal(tensor, before[key]), key
    assert all(parameter.grad is None for parameter in job.module.parameters())


def test_random_ops_leave_the_users_generator_alone(cores: list[RuntimeDevice]) -> None:
    job = build_with(dropout)
    before = torch.random.get_rng_state()
    profile_ops(job, captured(job), cores, steps=1, warmup=0)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_without_lstms_is_captured_once(cores: list[RuntimeDevice]) -> None:
    job = Job(nn.GRU(3, 4), (torch.randn(2, 2, 3),), mode="infer")
    asked = []
    _, times = timed_capture(job, lambda more: asked.append(more) or captured(job), lambda found: {}, True)
    assert asked == [()]
    assert times == {}


def test_measured_times_stand_beside_others() -> None:
    graph = captured(build("linear")).graph
    graph = replace(graph, ops=tuple(replace(op, time_s={"V100": 1.0}) for op in graph.ops))
    assert measured_types(graph) == ()
    once = with_measured_times(graph, {"cpu-core": {op.id: 2.0 for op in graph.ops}})
    twice = with_measured_times(once, {"A100": {op.id: 3.0 for op in graph.ops}})
    assert twice.ops[0].time_s == {"V100": 1.0, "cpu-core": 2.0, "A100": 3.0}
    assert measured_types(twice) == ("A100", "cpu-core")


@needs_two_cores
def test_links_between_cores_hand_tensors_over_without_copying(cores: list[RuntimeDevice]) -> None:
    topology = measured_topology(cores)
    assert [(device.id, device.type) for device in topology.devices] == [("cpu:0", "cpu-core"), ("cpu:1", "cpu-core")]
    (link,) = topology.links
    assert (link.source, link.target) == ("cpu:0", "cpu:1")
    assert link.latency_s > 0
    assert link.bytes_per_s == 1e15
    assert measured_topology(cores[:1]).links == ()


# Medians of 1 and 3 s, in steps that take 6 s when nothing is recorded.
def test_typical_times_add_up_to_the_whole() -> None:
    steps = [{"a": 1.0, "b": 4.0}, {"a": 50.0, "b": 1.0}, {"a": 1.0, "b": 3.0}]
    assert typical(steps, [6.0, 90.0, 5.0]) == {"a": 1.5, "b": 4.5}
    assert typical(steps[2:]) == steps[2]
