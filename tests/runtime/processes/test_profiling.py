"""Op times of devices that are processes, and what a hand-over between them takes."""

import os
import signal

import pytest
from runtime.processes.small_jobs import Branches, job_of

import dlplacer as dp
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.profile.process_handover import process_handover_s
from dlplacer.runtime.profile.process_profiler import ProcessProfiler


@pytest.fixture
def devices():
    opened = open_devices(["cpu:0", "cpu:1"])
    yield opened
    for device in opened:
        device.close()


def test_every_op_is_timed_on_every_device_and_the_job_stays_as_it_was(devices):
    job = job_of(Branches(), "sgd")
    before = {name: tensor.clone() for name, tensor in job.module.state_dict().items()}
    captured = capture_job(job, default_rewrites())
    profiler = ProcessProfiler(job, captured, devices)
    for positions in ([0], [1], [0, 1]):
        samples = profiler.recorded_steps(positions)
        assert len(samples) == len(positions)
        for sample in samples:
            assert sample.op_times_s.keys() == captured.graph.index.keys()
            assert sum(sample.op_times_s.values()) > 0
            assert sample.host_s >= 0
        assert all(seconds > 0 for seconds in profiler.plain_steps(positions))
    assert all((before[name] == tensor).all() for name, tensor in job.module.state_dict().items())
    os.kill(profiler._workers[1].pid, signal.SIGKILL)
    with pytest.raises(dp.RunError, match="profiled device 'cpu:1' was killed"):
        profiler.recorded_steps([0, 1])


def test_a_hand_over_takes_some_time(devices):
    assert 1e-8 < process_handover_s(*devices, rounds=50) < 1
