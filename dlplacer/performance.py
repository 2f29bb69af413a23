"""A schedule in ticks as ops and transfers in seconds."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from dlplacer.plan import ScheduledOp, Segment, Transfer
from dlplacer.problem import Problem
from dlplacer.steps import Hold, Step, earliest
from dlplacer.traffic import Send, Stretch, parcels_of


def perform(
    problem: Problem, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers in seconds, in the order of their ticks on every device and on every link.

    Parameters
    ----------
    device, start
        [op] → device and tick.
    sends
        Every parcel that is read on another device than its producer's, once per such device.
    """
    stage = _Stage(problem, device, start, sends)
    steps = stage.steps()
    begun = earliest(steps, problem.options.memory == "live")
    order = sorted(range(problem.op_count), key=lambda op: steps[op].key)
    names = [problem.topology.devices[here].id for here in device]
    ops = tuple(
        ScheduledOp(problem.graph.ops[op].id, names[op], begun[op], begun[op] + steps[op].length) for op in order
    )
    return ops, tuple(stage.transfers(begun, steps))


class _Stage:
    """The steps of a schedule: ops, then the barrier, then the stretches of the sends."""

    def __init__(self, problem: Problem, device: Sequence[int], start: Sequence[int], sends: Sequence[Send]) -> None:
        self.problem, self.device, self.start, self.sends = problem, device, start, sends
        self.parcels = parcels_of(problem)
        self.rank = {op: position for position, op in enumerate(problem.topological)}
        kinds = [problem.topology.devices[here].type for here in device]
        self.length_s = [op.time_on(kind) or 0.0 for op, kind in zip(problem.graph.ops, kinds, strict=True)]
        self.end = [begin + (problem.duration[op][device[op]] or 0) for op, begin in enumerate(start)]
        self.first = list(accumulate((len(send.way) for send in sends), initial=problem.op_count + 1))
        self.inputs: list[list[tuple[int, float]]] = [[] for _ in range(problem.op_count)]

    def steps(self) -> list[Step]:
        """All steps; those of ops come first, at the ops' positions."""
        stretches = [step for number, send in enumerate(self.sends) for step in self._stretches(number, send)]
        ops = [self._op(op) for op in range(self.problem.op_count)]
        return [*ops, self._barrier(), *stretches]

    def transfers(self, begun: Sequence[float], steps: Sequence[Step]) -> Iterator[Transfer]:
        """The transfers, in the order of the sends."""
        for first, send in zip(self.first, self.sends, strict=False):
            parcel = self.parcels[send.parcel]
            parts = (
                Segment(stretch.hops, begun[place], begun[place] + steps[place].length)
                for place, stretch in enumerate(send.way, first)
            )
            yield Transfer(
                parcel.tensor,
                self.problem.graph.ops[parcel.source].id,
                self.problem.topology.devices[send.target].id,
                self.problem.sizes_bytes[parcel.size],
                tuple(parts),
            )

    def _op(self, op: int) -> Step:
        here, begin, length_s = self.device[op], self.start[op], self.length_s[op]
        arcs = self.problem.arcs_into[op]
        after = [(arc.source, self.length_s[arc.source]) for arc in arcs if self.device[arc.source] == here]
        if op in self.problem.behind_barrier:
            after.append((self.problem.op_count, 0.0))
        return Step(
            (begin, self.end[op], self.rank[op], -1),
            length_s,
            (*after, *self.inputs[op]),
            (Hold(-1 - here, begin, self.end[op], 0.0, length_s),),
            here,
            (here,),
        )

    def _barrier(self) -> Step:
        """When all ops before the barrier have ended; the last in rank of them, so that ties go by dependency."""
        before = [op for op in range(self.problem.op_count) if op not in self.problem.behind_barrier]
        last = max((self.end[op] for op in before), default=0)
        rank = max((self.rank[op] for op in before), default=-1)
        return Step((last, last, rank, 0), 0.0, tuple((op, self.length_s[op]) for op in before))

    def _stretches(self, number: int, send: Send) -> Iterator[Step]:
        parcel = self.parcels[send.parcel]
        before, here = (parcel.source, self.length_s[parcel.source]), self.device[parcel.source]
        for part, (begin, stretch) in enumerate(zip(send.start, send.way, strict=True)):
            marks_s = self._marks_s(stretch, self.problem.sizes_bytes[parcel.size])
            cuts = self.problem.options.delay == "cut-through"
            holds = tuple(
                Hold(lane, begin + offset, begin + offset + ticks, *((0.0, marks_s[-1]) if cuts else span))
                for (lane, offset, ticks), span in zip(
                    stretch.holds, ((a, b - a) for a, b in pairwise(marks_s)), strict=False
                )
            )
            key = begin, begin + stretch.ticks, self.rank[parcel.source], part
            yield Step(key, marks_s[-1], (before,), holds, stretch.target, (here, stretch.target))
            before, here = (self.first[number] + part, marks_s[-1]), stretch.target
        for reader in parcel.readers:
            if self.device[reader] == send.target:
                self.inputs[reader].append(before)

    def _marks_s(self, stretch: Stretch, size_bytes: int) -> list[float]:
        """Seconds from the start of a stretch until it has passed each hop; the last is its length."""
        links = [self.problem.topology.link_between[hop] for hop in stretch.hops]
        if self.problem.options.delay == "cut-through":
            narrowest = min(link.total_bytes_per_s for link in links)
            return [0.0] * len(links) + [size_bytes / narrowest + sum(link.latency_s for link in links)]
        marks_s = [0.0]
        for link in links:
            marks_s.append(marks_s[-1] + (size_bytes / link.total_bytes_per_s + link.latency_s))
        return marks_s
