"""A plan's step time under what this machine measures: op times in whole steps, links, host overhead."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, median

from torch import nn

from dlplacer.core.plan import Plan
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.distributed.collective_ops import EXCHANGE
from dlplacer.runtime.profile.dispatch_time import dispatch_time_s
from dlplacer.runtime.profile.op_times import Profiler, with_measured_times
from dlplacer.runtime.profile.statistic import OpTimes, typical


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to take.

    Attributes
    ----------
    step_s
        Median over the samples of the replayed plan, and the host overhead.
    plan
        The plan as in the sample nearest to it, without the host overhead.
    typical
        The plan under the typical times of its ops.
    serial_s
        All ops of one replica one after another on the first device of a process; median over the samples, mean of all
        processes.
    host_s
        Seconds of a step before the devices start and after they end; the mean of all processes.
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
    """Predicts a plan from whole steps that every device runs alone: one sample for each of those steps.

    A sample is the plan, replayed with every op's time in that step on the device where it is planned. A replay of
    averages would lose that devices wait for the slower one, and that which one is slower changes within a step.
    Replicas wait for each other at every collective, so the slowest replica of a sample is what counts.
    Whoever compares a prediction with a measurement should alternate the steps of both: then what changes in the
    machine changes both.

    Parameters
    ----------
    reference
        The job's module with all of its data; it is left alone.
    """

    def __init__(self, placed: PlacedJob, reference: nn.Module, group: OneProcess) -> None:
        plan = placed.placed.plan
        # What runs is the joint program, whatever step the plan was made for.
        self._plan = replace(plan, options=replace(plan.options, step="joint"))
        self._job, self._captured = replace(placed.job, module=reference), placed.captured
        self._group, self._devices = group, placed.devices
        self._types = {device.type for device in group.topology.devices}
        self._profiler = Profiler(self._job, self._captured, list(self._devices.values()))
        self._exchange = {op.id for op in plan.graph.ops if op.kind in EXCHANGE}
        self._samples: list[dict[str, float]] = []
        self._serial_s: list[float] = []
        self._host_s: list[float] = []

    def untimed_step(self) -> None:
        """Run the whole step on every device of this process and keep nothing."""
        self._profiler.step()

    def step(self) -> None:
        """Run the whole step on every device of this process, and keep the time of each op that is planned there."""
        found = self._profiler.step()
        self._host_s.append(median(sample.host_s for sample in found))
        first = found[0].op_times_s
        self._serial_s.append(sum(seconds for op, seconds in first.items() if op not in self._exchange))
        by_device = {name: sample.op_times_s for name, sample in zip(self._devices, found, strict=True)}
        placement = self._plan.placement.items()
        self._samples.append({op: by_device[device][op] for op, device in placement if device in by_device})

    def predict(self, count: int) -> Prediction:
        """From the last `count` steps that were kept; the same on all processes."""
        own = [self._samples[-count:], median(self._serial_s[-count:]), median(self._host_s[-count:])]
        everyone = self._group.gathered(own)
        samples = joined_samples([theirs for theirs, _, _ in everyone], [names.replica for names in self._group.names])
        usual = typical([times for together in samples for times in together])
        dispatch_s = self._dispatch_s(usual)
        length_s = attrgetter("makespan_s")
        replays = [max((self._replay(times, dispatch_s) for times in together), key=length_s) for together in samples]
        makespan_s = float(median(map(length_s, replays)))
        nearest = min(replays, key=lambda plan: abs(plan.makespan_s - makespan_s))
        serial_s = fmean(serial_s for _, serial_s, _ in everyone)
        host_s = fmean(host_s for _, _, host_s in everyone)
        return Prediction(
            makespan_s + host_s, nearest, self._replay(usual, dispatch_s), serial_s + host_s, host_s, dispatch_s
        )

    def _replay(self, times: OpTimes, dispatch_s: float) -> Plan:
        # No device of this process runs collectives: the group knows their times.
        known = {**dict.fromkeys(self._plan.graph.index, 0.0), **times}
        graph = self._group.with_exchange(with_measured_times(self._plan.graph, dict.fromkeys(self._types, known)))
        return replay_plan(self._plan, graph, self._group.topology, dispatch_s, self._group.handover_s)

    def _dispatch_s(self, times: OpTimes) -> float:
        """Of the first device that is fed by the process; cores are not."""
        if self._group.all_reduce is not None:
            return 0.0  # a replay knows one process that feeds all devices; of several each feeds its own
        for device in self._devices.values():
            if not in_host_memory((device,)):
                return dispatch_time_s(self._job, self._captured, device, times)
        return 0.0


def joined_samples(samples: Sequence[Sequence[OpTimes]], replicas: Sequence[int]) -> list[list[OpTimes]]:
    """[sample][replica] → op → seconds, put together from [rank][sample], where every rank has its own ops.

    Parameters
    ----------
    replicas
        [rank] → its replica.
    """
    found: list[list[OpTimes]] = []
    for together in zip(*samples, strict=True):
        of_replica: list[dict[str, float]] = [{} for _ in set(replicas)]
        for replica, times in zip(replicas, together, strict=True):
            of_replica[replica].update(times)
        found.append([*of_replica])
    return found
