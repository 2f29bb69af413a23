"""How long the Python process needs to issue an op to a device that runs it later."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.profile.op_times import copied_tensors, whole_step

_ISSUED = 200
_STEPS = 3


class HostTimed:
    """A device whose marks are the host's clock: a recorded step then tells when ops were issued, not when they ran."""

    def __init__(self, device: RuntimeDevice) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def now(self) -> int:
        """Nanoseconds of a monotonic clock."""
        return time.perf_counter_ns()

    def elapsed_s(self, begin: int, end: int) -> float:
        """Seconds between two marks."""
        return (end - begin) * 1e-9


def dispatch_time_s(job: Job, captured: Captured, device: RuntimeDevice, durations_s: Mapping[str, float]) -> float:
    """Median seconds in which an op that takes time is issued. For a CPU core, where calls return when ops end, no use.

    Only the first ops of a step count: behind them the device's queue may be full, and issuing waits for the device.

    Parameters
    ----------
    durations_s
        Op → seconds on the device.
    """
    leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
    variant = whole_step(job, captured, HostTimed(device), leaves)
    tensors = copied_tensors(job, captured, device)
    times: list[float] = []
    for number in range(_STEPS):
        state = variant.joint.start(variant.with_tangent(variant.bind(tensors, leaves, 0, number), None), record=True)
        variant.joint.run(state)
        times = issue_times_s(state, variant.devices["all"], durations_s) if number else times
    return float(median(times)) if times else 0.0


def issue_times_s(state: StepState, device: RuntimeDevice, durations_s: Mapping[str, float]) -> list[float]:
    """Seconds between the issues of the first ops of a recorded step that take time."""
    assert state.timeline is not None
    spans = state.timeline["all"].spans(device)
    return [span.end_s - span.start_s for span in spans if durations_s[span.op] > 0][:_ISSUED]
