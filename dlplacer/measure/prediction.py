"""Predict a plan's step from costs of the same run: op times (alone, side by side), links and issue costs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from heapq import merge
from operator import attrgetter, methodcaller
from statistics import fmean

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.job import flat_inputs
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.measure.steps import OneProcess, PlacedJob
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.distributed.group import NETWORK
from dlplacer.runtime.profile.machine_times import issue_time_s
from dlplacer.runtime.profile.op_times import OpTimes, OwnStep, side_by_side, typical, with_measured_times

_ROUNDS = 3
SHORT_S = 1.0
"""A shorter step is timed after untimed steps, because other work has filled the caches with its data."""


@dataclass(frozen=True)
class Prediction:
    """The predicted step, in seconds; `plan` is the replayed plan of the slowest replica.

    `alone_s` is the total time of a replica's ops while no other device works, a mean over replicas. `busy_s` is the
    total time of the ops in `plan`. `contention` is the ops' time while all used devices work ÷ `alone_s`. `host_s` is
    the time before the devices start and after they end. `dispatch_s` is the cost of issuing an op; 0 for cores.
    """

    plan: Plan
    alone_s: float
    busy_s: float
    contention: float
    host_s: float
    dispatch_s: float


class Predictor:
    """Predicts a plan's step from op times measured without transfers: on each device alone, and side by side.

    In a plan, an op runs beside ops of other devices for a share of its time, which the replayed plan gives. The op's
    time is alone + share × (side by side − alone). No op time comes from a run of the whole plan. Replicas wait for
    each other at every collective, so the slowest replica counts.

    `own`: device of the plan → the device's own ops, for devices of this process; by default made from the placed job.
    """

    def __init__(self, placed: PlacedJob, group: OneProcess, own: Mapping[str, OwnStep] | None = None) -> None:
        self._placed, self._group = placed, group
        # The joint program runs, even if the plan was made for another step.
        plan = placed.placed.plan
        self._plan = replace(plan, options=replace(plan.options, step="joint"))
        self._used = used_devices(plan)
        job, starts = placed.job, {entry.op: entry.start_s for entry in plan.ops}
        tensors, leaves, segments = job_tensors(job), flat_inputs(job), placed.placed.segments
        step = (placed.placed.captured, plan.order)
        self._own = own or {
            name: OwnStep(*step, name, device, tensors, leaves, job=job, segments=segments, starts=starts)
            for name, device in placed.devices.items()
            if name in self._used
        }
        # Devices of all processes take turns to run alone.
        everyone = enumerate(group.gathered(list(self._own)))
        self._turns = [(rank, name) for rank, names in everyone for name in names]
        # Kind of sample → device → recorded op times, and seconds of an unrecorded step.
        self._samples: dict[str, dict[str, list[tuple[OpTimes, float]]]] = {"alone": {}, "together": {}}
        self._dispatch_s = self._measured_dispatch_s()

    def warm_up(self) -> None:
        """Run the ops untimed: segments are compiled in the first call, CUDA graphs captured by the third."""
        self._placed.placed.zero_grad(set_to_none=True)
        for kind in [*["plain"] * _ROUNDS, "recorded"] if self._own else []:
            side_by_side(methodcaller(kind), list(self._own.values()))

    def sample(self) -> None:
        """Time the ops once more, alone and side by side; called between steps of the plan."""
        self._placed.placed.zero_grad(set_to_none=True)
        for rank, name in self._turns:
            self._group.gathered(None)
            if rank == self._group.rank:
                self._take("alone", [name])
        if len(self._turns) > 1:
            self._group.gathered(None)
            self._take("together", list(self._own))

    def predict(self, host_s: float) -> Prediction:
        """The prediction from all samples and `host_s`, the host's time in recorded steps; equal on all processes."""
        own = {kind: self._typical(kind) for kind in self._samples}
        replicas = [{kind: dict[str, float]() for kind in own} for _ in range(self._group.replicas)]
        for replica, theirs in zip(self._group.replica_of, self._group.gathered(own), strict=True):
            for kind, times in theirs.items():
                replicas[replica][kind] |= times
        alone = [times["alone"] for times in replicas]
        together = [times["together"] if len(self._turns) > 1 else times["alone"] for times in replicas]
        plans = [self._settled(one, other) for one, other in zip(alone, together, strict=True)]
        alone_s, together_s = (fmean(sum(times.values()) for times in kind) for kind in (alone, together))
        slowest = max(plans, key=attrgetter("makespan_s"))
        busy_s = sum(entry.end_s - entry.start_s for entry in slowest.ops if entry.device in self._used)
        contention = together_s / alone_s if alone_s else 1.0
        return Prediction(slowest, alone_s, busy_s, contention, host_s, self._dispatch_s)

    def _take(self, kind: str, names: list[str]) -> None:
        steps = [self._own[name] for name in names]
        if not steps:
            return
        plain = side_by_side(lambda step: step.plain(), steps, keeps_busy=True)
        if max(plain) < SHORT_S or self._group.all_reduce is not None:
            plain = side_by_side(lambda step: step.plain(), steps, keeps_busy=True)
        recorded = side_by_side(lambda step: step.recorded(), steps, keeps_busy=True)
        for name, times, seconds in zip(names, recorded, plain, strict=True):
            self._samples[kind].setdefault(name, []).append((times, seconds))

    def _typical(self, kind: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for samples in self._samples[kind].values():
            recorded, plain = zip(*samples, strict=True)
            found |= typical(recorded, plain)
        return found

    def _settled(self, alone: OpTimes, together: OpTimes) -> Plan:
        """The plan with op times for its own overlap; a fixed-point iteration starts with all ops side by side."""
        plan = self._replayed(together)
        for _ in range(_ROUNDS if len(self._turns) > 1 else 0):
            shares = overlap_shares(plan, self._used, self._group.replicas)
            plan = self._replayed({op: alone[op] + shares.get(op, 0.0) * (together[op] - alone[op]) for op in alone})
        return plan

    def _replayed(self, times: OpTimes) -> Plan:
        # The samples contain no collectives; the group adds measured times of these.
        known = {**dict.fromkeys(self._plan.graph.index, 0.0), **times}
        types = {device.type for device in self._group.topology.devices}
        graph = self._group.with_exchange(with_measured_times(self._plan.graph, dict.fromkeys(types, known)))
        return replay_plan(self._plan, graph, self._group.topology, self._dispatch_s)

    def _measured_dispatch_s(self) -> float:
        """Seconds to issue an op, if one process issues the ops of all devices with streams one by one; else 0.

        A replay does not model one process per device."""
        used = (device for name, device in self._placed.devices.items() if name in self._own)
        fed = [device for device in used if device.streams is not None]
        if not fed or self._group.all_reduce is not None or self._placed.placed.segments != "eager":
            return 0.0
        return issue_time_s(fed)


def used_devices(plan: Plan) -> set[str]:
    """Devices of a plan, except the network, on which an op takes time."""
    working = {entry.device for entry in plan.ops if entry.end_s > entry.start_s} or set(plan.placement.values())
    return {device for device in working if not device.startswith(NETWORK)}


def overlap_shares(plan: Plan, devices: Collection[str], replicas: int = 1) -> Mapping[str, float]:
    """Op on one of `devices` → share of the other devices that work while the op runs: 0 alone, 1 beside all.

    The share is the mean number of other busy devices during the op ÷ the number of other devices. All replicas run the
    same plan at the same time, so a device's counterparts in other replicas are busy at the same times.
    """
    others = replicas * len(devices) - 1
    entries = [entry for entry in plan.ops if entry.device in devices and entry.end_s > entry.start_s]
    if not others:
        return {}
    begins = sorted((entry.start_s, 1) for entry in entries)
    ends = sorted((entry.end_s, -1) for entry in entries)
    busy, busy_s, last_s = 0, 0.0, 0.0
    until: dict[float, float] = {}  # moment → device-seconds of work before it
    for moment_s, change in merge(ends, begins):
        busy_s += busy * (moment_s - last_s)
        busy, last_s = busy + change, moment_s
        until[moment_s] = busy_s
    shares = {}
    for entry in entries:
        working = (until[entry.end_s] - until[entry.start_s]) / (entry.end_s - entry.start_s)
        shares[entry.op] = min(1.0, max(0.0, (replicas * working - 1) / others))
    return shares
