"""Steps on one core while processes keep the others busy: what cores share besides an interpreter."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.step_profiler import PlacedProfiler, PlainStep
from dlplacer.runtime.devices.caller_thread import call_on_core
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.busy_cores import BusyCores
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.profile.op_times import StepSample

T = TypeVar("T")


class CallerProfiler(PlacedProfiler):
    """A `PlacedProfiler` on the calling thread, kept on the core of a device, as a device runs that is a process.

    A step on a core's own thread waits for that thread to wake, twice, which processes spare the caller: two chains of
    2,000 short ops were predicted 5 to 15 % longer for it than they took.
    """

    def __init__(self, job: Job, captured: Captured, devices: Sequence[CpuDevice]) -> None:
        super().__init__(job, captured, [InlineDevice(device.name, device.type) for device in devices])
        self._cores = [device.core for device in devices]

    def _plain(self, position: int) -> PlainStep:
        return call_on_core(self._cores[position], partial(super()._plain, position))

    def _recorded(self, position: int) -> StepSample:
        return call_on_core(self._cores[position], partial(super()._recorded, position))


class NeighbourProfiler:
    """A `StepProfiler` for devices that are processes: side by side is one device at a time, beside busy processes.

    Steps of several devices in threads of one process would wait for its interpreter, which processes do not share.
    What they share, caches, memory and what a virtual machine makes of its cores, shows in a step beside processes that
    take the same step on the other cores.

    Parameters
    ----------
    job
        With the module of which every process takes steps on a copy.
    profiler
        Times the steps; of the same devices.
    """

    def __init__(
        self, job: Job, captured: Captured, devices: Sequence[CpuDevice], profiler: PlacedProfiler | None = None
    ) -> None:
        def step(device: InlineDevice) -> Callable[[], object]:
            own = PlacedProfiler(replace(job, module=copy.deepcopy(job.module)), captured, [device])
            return lambda: own.plain_steps([0])

        self._profiler = profiler or CallerProfiler(job, captured, devices)
        self.neighbours = BusyCores(devices, step)

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        """A step on each of these devices, timed op by op, while all others of them work."""
        return self._in_turn(self._profiler.recorded_steps, positions)

    def plain_steps(self, positions: Sequence[int]) -> list[PlainStep]:
        """A step on each of these devices while all others of them work, not recorded."""
        return self._in_turn(self._profiler.plain_steps, positions)

    def close(self) -> None:
        """End the processes."""
        self.neighbours.close()

    def _in_turn(self, take: Callable[[Sequence[int]], list[T]], positions: Sequence[int]) -> list[T]:
        found = []
        for position in positions:
            with self.neighbours.busy([other for other in positions if other != position]):
                found += take([position])
        return found
