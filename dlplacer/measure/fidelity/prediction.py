"""A plan's step time under what this machine measures: op times in whole steps, links, host overhead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from statistics import fmean

from torch import nn

from dlplacer.core.plan import Plan
from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.measure.fidelity.op_samples import OpSampler, OwnTimes
from dlplacer.measure.fidelity.overlap import blended, settled_shares
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.measure.fidelity.step_profiler import PlacedProfiler, StepProfiler
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.profile.dispatch_time import dispatch_time_s
from dlplacer.runtime.profile.op_times import with_measured_times
from dlplacer.runtime.profile.statistic import OpTimes


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to take.

    Attributes
    ----------
    steps_s
        Of each sample: the replayed plan, on its slowest replica, and the host overhead.
    plan
        The plan as in the sample nearest to `step_s`, without the host overhead.
    typical
        The plan under the typical times of its ops.
    one_device_s
        [round] → all ops of one replica on one device, by the runtime that runs the plan.
    contention
        Op times while all used devices work ÷ alone, one value for each sample; empty where one device is used.
    host_s
        Seconds of a step before the devices start and after they end; the mean of all processes.
    dispatch_s
        Seconds in which the Python process issues an op, where it feeds the devices; 0 for CPU cores.
    """

    steps_s: Sequence[float]
    plan: Plan
    typical: Plan
    one_device_s: Sequence[float]
    contention: Sequence[float]
    host_s: float
    dispatch_s: float

    @property
    def step_s(self) -> float:
        """The mean of the samples less an eighth at either end."""
        return trimmed_mean(self.steps_s)


class Predictor:
    """Predicts a plan from whole steps of the devices that it uses: alone, and all at the same time.

    In a plan an op runs beside others for a share of its time, which the replayed plan itself says (`settled_shares`):
    it takes alone + share × (side by side − alone). A sample is the plan replayed with every op's time in one step side
    by side on the device where it is planned, in proportion to that. A replay of averages would lose that devices wait
    for the slower one, and that which one is slower changes within a step. Replicas wait for each other at every
    collective, so the slowest replica of a sample is what counts.
    Whoever compares a prediction with a measurement should alternate the steps of both: then what changes in the
    machine changes both.

    Parameters
    ----------
    reference
        The job's module with all of its data; it is left alone.
    profiler
        Of the devices of this process, in their order; None for one that runs the ops as a plan in this process does.
    """

    def __init__(
        self, placed: PlacedJob, reference: nn.Module, group: OneProcess, profiler: StepProfiler | None = None
    ) -> None:
        plan = placed.placed.plan
        # What runs is the joint program, whatever step the plan was made for.
        self._plan = replace(plan, options=replace(plan.options, step="joint"))
        self._placed = placed.placed
        self._job, self._captured = replace(placed.job, module=reference), placed.captured
        self._group, self._devices = group, placed.devices
        self._types = {device.type for device in group.topology.devices}
        self._used = used_devices(plan)
        self._sampler = OpSampler(
            profiler or PlacedProfiler(self._job, self._captured, list(self._devices.values())), self._turns()
        )

    def steps(self) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
        """What to alternate with the plan's steps: name → a step that is kept, and one that is not."""
        sampler = self._sampler
        found = {"alone": (sampler.step_alone, sampler.untimed_alone)}
        if len(sampler.turns) > 1:
            found["side by side"] = (sampler.step_together, sampler.untimed_together)
        return found

    def predict(self, count: int) -> Prediction:
        """From the last `count` rounds that were kept; the same on all processes."""
        while not self._sampler.complete:
            self._group.gathered(None)
            self._sampler.step_alone()
        position = {name: number for number, name in enumerate(self._devices)}
        own = self._sampler.own_times(count, position, self._plan.placement)
        everyone = [OwnTimes(*theirs) for theirs in self._group.gathered(own.sent())]
        replicas = [names.replica for names in self._group.names]
        joined = partial(joined_samples, replicas=replicas)
        (alone,), (together,) = joined([[o.alone] for o in everyone]), joined([[o.together] for o in everyone])
        dispatch_s = self._dispatch_s(alone[0])
        usual = [self._blended(one, other, dispatch_s) for one, other in zip(alone, together, strict=True)]
        replays = []
        for sample in joined([o.samples for o in everyone]):
            plans = [
                self._replay({op: seconds * scale.get(op, 1.0) for op, seconds in times.items()}, dispatch_s)
                for times, scale in zip(sample, map(_ratio, usual, together), strict=True)
            ]
            replays.append(max(plans, key=attrgetter("makespan_s")))
        host_s = fmean(o.host_s for o in everyone)
        makespan_s = trimmed_mean([plan.makespan_s for plan in replays])
        return Prediction(
            steps_s=[plan.makespan_s + host_s for plan in replays],
            plan=min(replays, key=lambda plan: abs(plan.makespan_s - makespan_s)),
            typical=self._replay({op: fmean(times[op] for times in usual) for op in usual[0]}, dispatch_s),
            one_device_s=[seconds for _, seconds in sorted((n, s) for o in everyone for n, s in o.plain_s)],
            contention=[ratio for o in everyone for ratio in o.contention],
            host_s=host_s,
            dispatch_s=dispatch_s,
        )

    def _blended(self, alone: OpTimes, together: OpTimes, dispatch_s: float) -> OpTimes:
        """The typical times of a replica's ops under the overlap that the plan has with them."""
        names = zip(self._plan.topology.devices, self._group.topology.devices, strict=True)
        used = {there.id for here, there in names if here.id in self._used}
        replay = partial(self._replay, dispatch_s=dispatch_s)
        shares = settled_shares(alone, together, replay, used, self._group.replicas)
        return blended(alone, together, shares)

    def _replay(self, times: OpTimes, dispatch_s: float) -> Plan:
        # No device of this process runs collectives: the group knows their times.
        known = {**dict.fromkeys(self._plan.graph.index, 0.0), **times}
        graph = self._group.with_exchange(with_measured_times(self._plan.graph, dict.fromkeys(self._types, known)))
        return replay_plan(self._plan, graph, self._group.topology, dispatch_s)

    def _turns(self) -> list[int | None]:
        """The used devices of all processes: the position among this one's devices, None for another's."""
        position = {name: number for number, name in enumerate(self._devices)}
        everyone = self._group.gathered([name for name in self._devices if name in self._used])
        return [
            position[name] if rank == self._group.rank else None
            for rank, names in enumerate(everyone)
            for name in names
        ]

    def _dispatch_s(self, times: OpTimes) -> float:
        """Of the first device that is fed by the process; cores are not."""
        if self._group.all_reduce is not None:
            return 0.0  # a replay knows one process that feeds all devices; of several each feeds its own
        for device in self._devices.values():
            if not in_host_memory((device,)):
                return dispatch_time_s(self._job, self._captured, device, times)
        return 0.0


def used_devices(plan: Plan) -> set[str]:
    """Devices of a plan on which an op takes time, the network aside."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s}
    # The network of a process's second GPU is ``rank0/network/1``.
    return {
        device
        for device in working or set(plan.placement.values())
        if not any(part.startswith(NETWORK) for part in device.split("/"))
    }


def _ratio(times: OpTimes, base: OpTimes) -> dict[str, float]:
    return {op: seconds / base[op] for op, seconds in times.items() if base[op] > 0}


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
