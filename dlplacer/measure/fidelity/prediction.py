"""A plan's step time under what this machine measures: op times in whole steps, links, what the host costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.profile.dispatch_time import dispatch_time_s
from dlplacer.runtime.profile.link_times import handover_time_s, measured_topology
from dlplacer.runtime.profile.op_times import OpTimes, Profiler, StepSample, typical, with_measured_times


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to take.

    Attributes
    ----------
    step_s
        Median over the samples of the replayed plan, and what the host adds.
    plan
        The plan as in the sample nearest to it, without what the host adds.
    typical
        The plan under the typical times of its ops.
    serial_s
        All ops one after another on the first device; median over the samples.
    host_s
        Seconds of a step before the devices start and after they end.
    dispatch_s
        Seconds in which the Python process issues an op, where it feeds the devices; 0 for CPU cores.
    """

    step_s: float
    plan: Plan
    typical: Plan
    serial_s: float
    host_s: float
    dispatch_s: float


class Predictor:
    """Predicts a plan from steps that every device runs by itself: one sample for each of those steps.

    A sample is the plan, replayed with every op's time in that step on the device where it is planned. A replay of
    averages would lose that devices wait for the slower one, and that which one is slower changes within a step.
    Whoever compares a prediction with a measurement should let the steps of both take turns: then what changes in the
    machine changes both.

    Parameters
    ----------
    devices
        Those that stand for the plan's, in order. Links between them are timed here.
    """

    def __init__(self, job: Job, plan: Plan, captured: Captured, devices: Sequence[RuntimeDevice]) -> None:
        # What runs is the joint program, whatever step the plan was made for.
        self._plan = replace(plan, options=replace(plan.options, step="joint"))
        self._job, self._captured, self._devices = job, captured, tuple(devices)
        self._profiler = Profiler(job, captured, devices)
        self._topology = measured_topology(devices)
        self._handover_s = handover_time_s(devices)
        self._samples: list[tuple[StepSample, ...]] = []

    def untimed_step(self) -> None:
        """Run the whole step on every device and keep nothing."""
        self._profiler.step()

    def step(self) -> None:
        """Run the whole step on every device and keep its times."""
        self._samples.append(self._profiler.step())

    def predict(self, count: int) -> Prediction:
        """From the last steps that were kept, so many."""
        kept = self._samples[-count:]
        times = [self._on_planned_devices(samples) for samples in kept]
        usual = typical(times)
        dispatch_s = self._dispatch_s(usual)
        replays = [self._replay(sample, dispatch_s) for sample in times]
        makespan_s = float(median(plan.makespan_s for plan in replays))
        nearest = min(replays, key=lambda plan: abs(plan.makespan_s - makespan_s))
        host_s = float(median(sample.host_s for samples in kept for sample in samples))
        serial_s = float(median(sum(samples[0].op_times_s.values()) for samples in kept)) + host_s
        return Prediction(makespan_s + host_s, nearest, self._replay(usual, dispatch_s), serial_s, host_s, dispatch_s)

    def _on_planned_devices(self, samples: Sequence[StepSample]) -> dict[str, float]:
        """Every op's time on the device where it is planned."""
        by_device = dict(zip((device.id for device in self._plan.topology.devices), samples, strict=True))
        return {op: by_device[device].op_times_s[op] for op, device in self._plan.placement.items()}

    def _replay(self, times: OpTimes, dispatch_s: float) -> Plan:
        graph = with_measured_times(self._plan.graph, {device.type: times for device in self._devices})
        return replay_plan(self._plan, graph, self._topology, dispatch_s, self._handover_s)

    def _dispatch_s(self, times: OpTimes) -> float:
        """Of the first device that is fed by the process; cores are not."""
        for device in self._devices:
            if not in_host_memory((device,)):
                return dispatch_time_s(self._job, self._captured, device, times)
        return 0.0
