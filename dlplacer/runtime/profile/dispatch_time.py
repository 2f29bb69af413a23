"""The time for which issuing an op holds its Python process, on devices with streams and on cores."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import HostClock
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.profile.op_times import Profiler
from dlplacer.runtime.profile.statistic import OpTimes

_ISSUED = 200
_STEPS = 3
_SIDE, _LENGTH = 48, 200
"""Side of the matrices of the chain of short ops, and how many pairs of ops it has: 4 us each on a core, alone."""
KERNELS = ("aten.mm", "aten.tanh")
"""The kinds of its ops."""
_WARM_STEPS, _TURN_STEPS = 3, 15
"""Now and then two threads get along for a step, in a quarter of the time: the median of 15 is not one of those."""


class HostTimed(HostClock):
    """A device whose marks are the host's clock: a recorded step then has the times at which ops were issued."""

    def __init__(self, device: RuntimeDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


def dispatch_time_s(job: Job, captured: Captured, device: RuntimeDevice, durations_s: OpTimes) -> float:
    """Median seconds in which an op that takes time is issued. For a CPU core, where calls return when ops end, no use.

    Only the first ops of a step count: behind them the device's queue may be full, and issuing waits for the device.

    Parameters
    ----------
    durations_s
        Op → seconds on the device.
    """
    profiler = Profiler(job, captured, [HostTimed(device)])
    for _ in range(_STEPS):
        (sample,) = profiler.step()
    times = issue_times_s(sample.op_times_s, durations_s)
    # Ops differ in what their issue takes, and a rare long one (a first allocation) is not what the next op will take.
    return float(median(times)) if times else 0.0


def turn_time_s(devices: Sequence[RuntimeDevice]) -> float:
    """Seconds after the start of an op on a core until an op of another thread of this process starts.

    On two cores or more a chain of short ops runs on all of them at once, as plans run; they start ops one after
    another, so it is the time of the chain ÷ all ops. Where they gain from running at once, it is at most that. 0 for
    one core.
    """
    if len(devices) < 2:
        return 0.0
    job, captured = short_chain()
    profiler = Profiler(job, captured, devices)
    lengths = []
    for _ in range(_WARM_STEPS + _TURN_STEPS):
        lengths.append(max(sum(sample.op_times_s.values()) for sample in profiler.step()))
    return float(median(lengths[_WARM_STEPS:])) / (len(devices) * 2 * _LENGTH)


def launch_time_s(device: RuntimeDevice) -> float:
    """Seconds in which the process issues a short op to a device that runs it later: the launch overhead."""
    job, captured = short_chain()
    return dispatch_time_s(job, captured, device, {op.id: float(op.kind in KERNELS) for op in captured.graph.ops})


def dispatch_of_devices_s(devices: Sequence[RuntimeDevice]) -> float:
    """Seconds in which their process issues an op to devices of one kind: a call among cores, else the launch."""
    return turn_time_s(devices) if in_host_memory(devices) else launch_time_s(devices[0])


class _Chain(nn.Module):
    """Ops that read what the one before has made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(_SIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products and tanh, alternating."""
        for _ in range(_LENGTH):
            x = torch.tanh(x @ self.weight)
        return x


def short_chain() -> tuple[Job, Captured]:
    """Inference of a chain of short ops, which `KERNELS` names, and its capture."""
    job = Job(_Chain().eval(), args=(torch.zeros(_SIDE, _SIDE),), mode="infer")
    return job, capture_job(job, default_rewrites())


def issue_times_s(issues_s: OpTimes, durations_s: OpTimes) -> list[float]:
    """Seconds between the issues of the first ops of a step, in its order, that take time."""
    return [seconds for op, seconds in issues_s.items() if durations_s[op] > 0][:_ISSUED]
