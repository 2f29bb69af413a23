"""How long the Python process needs to issue an op to a device that runs it later."""

from statistics import median
from typing import Any

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.host_device import HostClock
from dlplacer.runtime.profile.op_times import Profiler
from dlplacer.runtime.profile.statistic import OpTimes

_ISSUED = 200
_STEPS = 3


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


def issue_times_s(issues_s: OpTimes, durations_s: OpTimes) -> list[float]:
    """Seconds between the issues of the first ops of a step, in its order, that take time."""
    return [seconds for op, seconds in issues_s.items() if durations_s[op] > 0][:_ISSUED]
