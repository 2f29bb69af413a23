"""A plan's step time over several processes, under what all of them measure together."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.measure.fidelity.prediction import Prediction
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.collective_ops import EXCHANGE
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.measured_network import measured_machine
from dlplacer.runtime.distributed.network_topology import with_network
from dlplacer.runtime.distributed.ranks import Ranks
from dlplacer.runtime.distributed.replicate import with_exchange_times
from dlplacer.runtime.profile.op_times import OpTimes, Profiler, typical, with_measured_times


class RanksPredictor:
    """As `dlplacer.measure.fidelity.prediction.Predictor`, with the samples of all processes; every process calls it.

    A sample is the plan, replayed with every op's time in one step on the process that runs it. All replicas wait for
    each other at every collective, so the slowest replica of a sample is what counts.

    Parameters
    ----------
    whole
        The captured step with its collectives, which take no time here: theirs is that of `all_reduce`.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        whole: Captured,
        group: RankGroup,
        opened: Mapping[str, RuntimeDevice],
        all_reduce: AlphaBeta,
    ) -> None:
        self._plan, self._group, self._line = plan, group, all_reduce
        self._names = list(opened)
        machine = measured_machine(group, opened)
        self._kinds = {device.type for device in machine.devices}
        self._topology = machine if group.ranks.replicas == 1 else with_network(machine, plan.options.delay)
        self._profiler = Profiler(job, whole, list(opened.values()))
        self._added = {op.id for op in plan.graph.ops if op.kind in EXCHANGE}
        self._samples: list[dict[str, float]] = []
        self._serial_s: list[float] = []
        self._host_s: list[float] = []

    def untimed_step(self) -> None:
        """Run the whole step on every device of this process, and keep nothing."""
        self._profiler.step()

    def step(self) -> None:
        """Run the whole step on every device of this process, and keep the time of each op that is planned there."""
        found = self._profiler.step()
        by_device = {name: sample.op_times_s for name, sample in zip(self._names, found, strict=True)}
        self._host_s.append(median(sample.host_s for sample in found))
        first = by_device[self._names[0]]
        self._serial_s.append(sum(seconds for op, seconds in first.items() if op not in self._added))
        placement = self._plan.placement.items()
        self._samples.append({op: by_device[device][op] for op, device in placement if device in by_device})

    def predict(self, count: int) -> Prediction:
        """From the last steps, so many; the same on all processes."""
        ours = [self._samples[-count:], median(self._serial_s[-count:]), median(self._host_s[-count:])]
        everyone = self._group.gathered(ours)
        samples = joined_samples([theirs for theirs, _, _ in everyone], self._group.ranks)
        replays = [max(map(self._replay, together), key=_length_s) for together in samples]
        makespan_s = float(median(map(_length_s, replays)))
        nearest = min(replays, key=lambda plan: abs(plan.makespan_s - makespan_s))
        usual = typical([times for together in samples for times in together])
        serial_s = fmean(serial_s for _, serial_s, _ in everyone)
        host_s = fmean(host_s for _, _, host_s in everyone)
        return Prediction(makespan_s + host_s, nearest, self._replay(usual), serial_s + host_s, host_s, 0.0)

    def _replay(self, times: OpTimes) -> Plan:
        known = {**dict.fromkeys(self._plan.graph.index, 0.0), **times}
        graph = with_measured_times(self._plan.graph, dict.fromkeys(self._kinds, known))
        if self._group.ranks.replicas > 1:
            graph = with_exchange_times(graph, self._topology, self._line)
        return replay_plan(self._plan, graph, self._topology)


def joined_samples(samples: Sequence[Sequence[OpTimes]], ranks: Ranks) -> list[list[OpTimes]]:
    """[sample][replica] → op → seconds, put together from [rank][sample], where every rank has its own ops."""
    found: list[list[OpTimes]] = []
    for together in zip(*samples, strict=True):
        of_replica: list[dict[str, float]] = [{} for _ in range(ranks.replicas)]
        for rank, times in enumerate(together):
            of_replica[ranks.replica_of(rank)].update(times)
        found.append([*of_replica])
    return found


def _length_s(plan: Plan) -> float:
    return plan.makespan_s
