"""Whole steps on one device each, as the runtime runs them there, timed op by op."""

import copy
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Device, Topology
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.op_times import StepSample, at_the_same_time

T = TypeVar("T")
_HERE = "here"


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A step that is not recorded.

    Attributes
    ----------
    wall_s
        The whole step.
    host_s
        Seconds in which the device had no work; None for a device that runs later what it is given.
    """

    wall_s: float
    host_s: float | None = None


class StepProfiler(Protocol):
    """Times whole steps on single devices by whatever runs the plan that is predicted."""

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        """A step on each of the devices at these positions, all at the same time; a sample of each, in this order."""

    def plain_steps(self, positions: Sequence[int]) -> list[PlainStep]:
        """A step on each of them, at the same time, that is not recorded, as in training."""


class PlacedProfiler:
    """A `StepProfiler` of placed steps: for each device a plan that puts all ops there, on a copy of the module.

    Parameters
    ----------
    job
        With the module of which every device gets a copy.
    """

    def __init__(self, job: Job, captured: Captured, devices: Sequence[RuntimeDevice]) -> None:
        self._placed = []
        self._devices = [_Clocked(device) for device in devices]
        for device, clocked in zip(devices, self._devices, strict=True):
            own = replace(job, module=copy.deepcopy(job.module))
            here = {_HERE: cast("RuntimeDevice", clocked)}
            module = PlacedModule(own, plan_on_one(captured.graph, device.type), captured, here)
            self._placed.append(PlacedJob(module, captured, [own]))

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        """A step on each of these devices at the same time, timed op by op."""
        return at_the_same_time(self._recorded, positions)

    def plain_steps(self, positions: Sequence[int]) -> list[PlainStep]:
        """A step on each of these devices at the same time, not recorded."""
        return at_the_same_time(self._plain, positions)

    def _plain(self, position: int) -> PlainStep:
        device = self._devices[position]
        before_s, begin = device.worked_s, time.perf_counter()
        self._placed[position].step()
        wall_s = time.perf_counter() - begin
        worked_s = device.worked_s - before_s
        return PlainStep(wall_s, max(0.0, wall_s - worked_s) if device.torch_device == HOST_DEVICE else None)

    def _recorded(self, position: int) -> StepSample:
        job = self._placed[position]
        job.placed.records = True
        try:
            begin = time.perf_counter()
            job.step()
            wall_s = time.perf_counter() - begin
        finally:
            job.placed.records = False
        spans = job.placed.timelines[_HERE].spans(job.placed.devices[_HERE])
        times = {span.op: span.end_s - span.start_s for span in spans}
        return StepSample(times, max(0.0, wall_s - sum(times.values())))


def plan_on_one(graph: OpGraph, device_type: str) -> Plan:
    """All ops on one device in the graph's order; no times."""
    ops = tuple(ScheduledOp(op.id, _HERE, 0.0, 0.0) for op in graph.ops)
    topology = Topology((Device(_HERE, device_type),), (), ())
    return Plan(graph, topology, Options(step="joint"), "feasible", 0.0, 0.0, 0.0, 0.0, "single", 0.0, ops, ())


class _Clocked:
    """A device that adds up the seconds of the work that it is given."""

    def __init__(self, device: RuntimeDevice) -> None:
        self._device = device
        self.worked_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """As the device does."""
        return self._device.submit(self._timed(work))

    def _timed(self, work: Callable[[], T]) -> Callable[[], T]:
        def timed() -> T:
            begin = time.perf_counter()
            try:
                return work()
            finally:
                self.worked_s += time.perf_counter() - begin

        return timed
