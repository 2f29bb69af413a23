"""A schedule in ticks performed in seconds: nothing overtakes, everything as early as that allows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from dlplacer.network import Network
from dlplacer.plan import ScheduledOp, Segment, Transfer
from dlplacer.problem import Problem
from dlplacer.traffic import Send, Traffic


def perform(
    problem: Problem, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers in seconds, in the order of their ticks on every device and on every link.

    Times never exceed those of the schedule by more than what its ticks leave out. Under ``memory: live`` what starts
    also waits for all that had ended on its devices by its tick: what is alive at a start was alive at that tick, so
    memory suffices if it did in ticks, although things may start earlier than their ticks say.

    Parameters
    ----------
    device, start
        [op] → device and tick.
    sends
        Every parcel that is read on another device than its producer's, once per such device.
    """
    stage = _Stage(problem, device, sends)
    for step in sorted(_steps(problem, device, start, sends)):
        stage.perform(step)
    return tuple(stage.ops), tuple(stage.transfers())


@dataclass(frozen=True, slots=True, order=True)
class _Step:
    """An op, or a stretch of a send, with its ticks; ties of no length go by dependency."""

    start: int
    end: int
    rank: int
    stretch: int
    number: int


def _steps(problem: Problem, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]) -> Iterator[_Step]:
    rank = {op: position for position, op in enumerate(problem.topological)}
    for op in range(problem.op_count):
        yield _Step(start[op], start[op] + (problem.duration[op][device[op]] or 0), rank[op], -1, op)
    parcels = Traffic(problem).parcels
    for number, send in enumerate(sends):
        source = parcels[send.parcel].source
        for position, (stretch, begin) in enumerate(zip(send.way, send.start, strict=True)):
            yield _Step(begin, begin + stretch.ticks, rank[source], position, number)


class _Stage:
    """What has been performed so far."""

    def __init__(self, problem: Problem, device: Sequence[int], sends: Sequence[Send]) -> None:
        self.problem, self.device, self.sends = problem, device, sends
        self.parcels = Traffic(problem).parcels
        self.network = Network(problem)
        self.ops: list[ScheduledOp] = []
        self.segments: list[list[Segment]] = [[] for _ in sends]
        self.inputs: dict[int, list[int]] = defaultdict(list)
        for number, send in enumerate(sends):
            for reader in self.parcels[send.parcel].readers:
                if device[reader] == send.target:
                    self.inputs[reader].append(number)
        self.end_s = [0.0] * problem.op_count
        self.free_s = [0.0] * problem.device_count
        self.forward_s = 0.0
        self.waits_for_memory = problem.options.memory == "live"
        self.ending: list[list[tuple[int, float]]] = [[] for _ in self.free_s]
        self.ended_s = [0.0] * problem.device_count

    def perform(self, step: _Step) -> None:
        """Start an op or a stretch as early as possible."""
        if step.stretch < 0:
            self._op(step, step.number)
        else:
            self._stretch(step, self.sends[step.number])

    def transfers(self) -> Iterator[Transfer]:
        """The transfers, in the order of the sends."""
        devices = self.problem.topology.devices
        for send, parts in zip(self.sends, self.segments, strict=True):
            parcel = self.parcels[send.parcel]
            source, size = self.problem.graph.ops[parcel.source].id, self.problem.sizes_bytes[parcel.size]
            yield Transfer(parcel.tensor, source, devices[send.target].id, size, tuple(parts))

    def _op(self, step: _Step, op: int) -> None:
        here, node = self.device[op], self.problem.graph.ops[op]
        start_s = max(self.free_s[here], self._memory_s(here, step.start))
        for arc in self.problem.arcs_into[op]:
            if self.device[arc.source] == here:
                start_s = max(start_s, self.end_s[arc.source])
        for number in self.inputs[op]:
            start_s = max(start_s, self.segments[number][-1].end_s)
        if op in self.problem.behind_barrier:
            start_s = max(start_s, self.forward_s)
        where = self.problem.topology.devices[here]
        end_s = self.end_s[op] = self.free_s[here] = start_s + (node.time_on(where.type) or 0.0)
        if op not in self.problem.behind_barrier:
            self.forward_s = max(self.forward_s, end_s)
        self.ops.append(ScheduledOp(node.id, where.id, start_s, end_s))
        heappush(self.ending[here], (step.end, end_s))

    def _stretch(self, step: _Step, send: Send) -> None:
        parcel, done = self.parcels[send.parcel], self.segments[step.number]
        stretch = send.way[step.stretch]
        origin = send.way[step.stretch - 1].target if step.stretch else self.device[parcel.source]
        ready_s = max(done[-1].end_s if done else self.end_s[parcel.source], self._memory_s(stretch.target, step.start))
        done.append(self.network.carry(stretch.hops, self.problem.sizes_bytes[parcel.size], ready_s))
        for place in (origin, stretch.target):
            heappush(self.ending[place], (step.end, done[-1].end_s))

    def _memory_s(self, here: int, tick: int) -> float:
        """When all that ends on a device by a tick has ended; 0 where memory is not looked at over time."""
        if not self.waits_for_memory:
            return 0.0
        while self.ending[here] and self.ending[here][0][0] <= tick:
            self.ended_s[here] = max(self.ended_s[here], heappop(self.ending[here])[1])
        return self.ended_s[here]
