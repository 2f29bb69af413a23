"""A chain of segments as stages of a dynamic program: each decides where the blocks of a segment go.

The segments between cut ops run one after another, so the sum of their lengths bounds the makespan. A stage holds the
blocks that occur in its segments for the first time. What its segments take depends on these and on the device of the
stage before, where the first cut op of a segment lies. Where forward and backward ops share blocks, the backward
segments belong to the stages of the forward ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.live_memory import Stash
from dlplacer.solvers.decomposition.segments import GraphSegment, find_segments
from dlplacer.solvers.instance.instance import Delay, Instance
from dlplacer.solvers.instance.time_limit import now

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StageParams:
    """Limits of the stages.

    Attributes
    ----------
    most_choices
        Placements of a stage's blocks; a segment of more is left with its critical path alone. A layer of three
        parallel ops has 256 on four devices.
    """

    most_choices: int = 512


PARAMS = StageParams()


@dataclass(frozen=True)
class DecisionStage:
    """The blocks that a stage places, and what every placement costs.

    Attributes
    ----------
    blocks
        The last of them is the stage's *boundary*: the block of the op that the next stage's segments begin with.
    choices
        [placement][block] → device.
    ticks
        [device of the boundary before][placement] → what the stage's segments take at least.
    kept
        [device of the boundary before][placement][device] → bytes.
    work
        [placement][device] → ticks of all ops of the blocks.
    """

    blocks: tuple[int, ...]
    choices: Ints
    ticks: Ints
    kept: Ints
    work: Ints

    @cached_property
    def used(self) -> Ints:
        """[placement] → bit set of its devices."""
        return np.asarray(np.bitwise_or.reduce(1 << self.choices, axis=1))

    @property
    def last(self) -> Ints:
        """[placement] → device of the boundary."""
        return self.choices[:, -1]


@dataclass(frozen=True)
class StageChain:
    """The stages, and what lies beside them.

    Attributes
    ----------
    beside
        Blocks of no stage.
    """

    stages: tuple[DecisionStage, ...]
    beside: tuple[int, ...]


def build_stages(instance: Instance, last: int, kept: Sequence[Stash], seconds: float) -> StageChain:
    """The stages of the segments that lead to `last`.

    Parameters
    ----------
    kept
        Outputs that take memory beside the footprints.
    seconds
        When they are up, the segments that are left count as nothing, and their blocks lie beside the stages.
    """
    plan, stop_at = _Plan(instance), now() + seconds
    for segment in find_segments(instance, last, seconds / 2):
        if now() < stop_at:
            plan.add(segment)
    plan.end(last)
    stages = tuple(takewhile(lambda _: now() < stop_at + seconds, plan.stages(kept)))
    placed = {block for stage in stages for block in stage.blocks}
    beside = tuple(block for block in range(len(instance.members)) if block not in placed)
    return StageChain(stages, beside)


class _Plan:
    """Blocks per stage and the pieces of the graph whose lengths each stage pays, while they are collected."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.blocks: list[tuple[int, ...]] = []
        self.pieces: list[list[Instance]] = []
        self.names: list[list[tuple[int, ...]]] = []
        self.stage_of: dict[int, int] = {}
        self.ignored = {instance.block[instance.barrier]} if instance.barrier is not None else set()

    def add(self, segment: GraphSegment) -> None:
        """Give a segment to the stage that knows all of its blocks; else its critical path, op by op."""
        instance = self.instance
        blocks = list(dict.fromkeys(instance.block[op] for op in segment.ops if instance.block[op] not in self.ignored))
        end = instance.block[segment.ops[-1]]
        new = sorted((block for block in blocks if block not in self.stage_of), key=lambda block: block == end)
        choices = 1
        for block in new:
            choices *= len(instance.allowed[instance.members[block][0]])
        if new and self._suits(len(self.blocks), blocks, new) and choices <= PARAMS.most_choices:
            self._open(new)
        number = max((self.stage_of.get(block, -1) for block in blocks), default=-1)
        if all(block in self.stage_of for block in blocks) and number >= 0 and self._suits(number, blocks, ()):
            self._pay(number, segment.instance, segment.ops)
        else:
            self._add_path(segment)

    def end(self, last: int) -> None:
        """Segments end when their last op starts: the last of all takes its time too."""
        block = self.instance.block[last]
        if block in self.stage_of:
            self._pay(self.stage_of[block], self.instance.restricted([last]), [last])

    def _suits(self, number: int, blocks: Iterable[int], new: Sequence[int]) -> bool:
        """True if the blocks are those of a stage, new ones, or the boundary before the stage."""
        before = self.blocks[number - 1][-1] if number else -1
        return all(block in new or block == before or self.stage_of.get(block) == number for block in blocks)

    def _open(self, new: Sequence[int]) -> None:
        for block in new:
            self.stage_of[block] = len(self.blocks)
        self.blocks.append(tuple(new))
        self.pieces.append([])
        self.names.append([])

    def _pay(self, number: int, piece: Instance, ops: Sequence[int]) -> None:
        self.pieces[number].append(piece)
        self.names[number].append(tuple(ops))

    def _add_path(self, segment: GraphSegment) -> None:
        """Each op of a critical path in its block's stage, with the arc before it where that is between neighbours."""
        part = segment.instance
        path = _longest_path(part)
        for position, op in enumerate(path):
            block = self.instance.block[segment.ops[op]]
            if block in self.ignored or (position == len(path) - 1 and block not in self.stage_of):
                continue
            if block not in self.stage_of:
                self._open([block])
            self._pay(self.stage_of[block], part.restricted([op]), [segment.ops[op]])
            if position and self.instance.block[segment.ops[path[position - 1]]] in self.stage_of:
                pair = [path[position - 1], op]
                ops = [segment.ops[one] for one in pair]
                number = max(self.stage_of[self.instance.block[one]] for one in ops)
                if self._suits(number, [self.instance.block[one] for one in ops], ()):
                    self._pay(number, _without_time(part.restricted(pair)), ops)

    def stages(self, kept: Sequence[Stash]) -> Iterator[DecisionStage]:
        """The stages with all their placements."""
        instance, devices = self.instance, range(self.instance.device_count)
        pairs: dict[int, list[tuple[int, int, int]]] = {}
        for stash in kept:
            ends = instance.block[stash.source], instance.block[stash.reader]
            if all(block in self.stage_of for block in ends):
                number = max(self.stage_of[block] for block in ends)
                if self._suits(number, ends, ()):
                    pairs.setdefault(number, []).append((*ends, stash.size))
        for number, blocks in enumerate(self.blocks):
            before = self.blocks[number - 1][-1] if number else -1
            grids = np.meshgrid(*([np.array(instance.allowed[instance.members[b][0]]) for b in blocks]), indexing="ij")
            choices = np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
            count = len(choices)
            where = {block: np.tile(choices[:, place], len(devices)) for place, block in enumerate(blocks)}
            where[before] = np.repeat(np.arange(len(devices)), count)
            ticks = np.zeros(len(devices) * count, np.int64)
            for piece, ops in zip(self.pieces[number], self.names[number], strict=True):
                ticks += _length(piece, [where.get(instance.block[op], where[before]) for op in ops])
            sizes = np.zeros((len(devices) * count, len(devices)), np.int64)
            work = np.zeros((count, len(devices)), np.int64)
            for place, block in enumerate(blocks):
                for d in devices:
                    sizes[:, d] += instance.footprint[block] * (where[block] == d)
                    own = sum(instance.duration[op][d] for op in instance.members[block])
                    work[:, d] += own * (choices[:, place] == d)
            for a, b, size in pairs.get(number, ()):
                for d in devices:
                    sizes[:, d] += size * ((where[a] == d) & (where[b] == d))
            shape = len(devices), count
            yield DecisionStage(blocks, choices, ticks.reshape(shape), sizes.reshape(*shape, len(devices)), work)


def _longest_path(part: Instance) -> list[int]:
    """The ops of a longest path by shortest durations and least delays, that ends with the last op."""
    end, before = [0] * part.op_count, [-1] * part.op_count
    for op in part.order:
        for source, delay in part.predecessors[op]:
            arrival = end[source] + _least(part, source, op, delay)
            if arrival >= end[op]:
                end[op], before[op] = arrival, source
        end[op] += part.shortest[op]
    path = [part.order[-1]]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def _least(part: Instance, source: int, target: int, delay: Delay) -> int:
    return min((delay[a][b] for a in part.allowed[source] for b in part.allowed[target]), default=0)


def _without_time(part: Instance) -> Instance:
    return replace(part, duration=((0,) * part.device_count,) * part.op_count)


def _length(piece: Instance, device: Sequence[Ints]) -> Ints:
    """[placement] → ticks in which a piece's ops can run at least, if they lie on these devices.

    The longest path with its delays, and for every device the least head, the work and the least tail of its ops.
    """
    tables = {delay: np.array(delay, np.int64) for row in piece.successors for _, delay in row}
    ticks = [np.array(row, np.int64)[here] for row, here in zip(piece.duration, device, strict=True)]
    head, tail = [np.zeros_like(device[0]) for _ in ticks], [np.zeros_like(device[0]) for _ in ticks]
    for op in piece.order:
        for source, delay in piece.predecessors[op]:
            arrival = head[source] + ticks[source] + tables[delay][device[source], device[op]]
            np.maximum(head[op], arrival, out=head[op])
    for op in reversed(piece.order):
        for target, delay in piece.successors[op]:
            passed = tail[target] + ticks[target] + tables[delay][device[op], device[target]]
            np.maximum(tail[op], passed, out=tail[op])
    longest = np.max([h + p + t for h, p, t in zip(head, ticks, tail, strict=True)], axis=0)
    for d in range(piece.device_count):
        runs = [(here == d) & (p > 0) for here, p in zip(device, ticks, strict=True)]
        first, last = _least_where(runs, head), _least_where(runs, tail)
        load = np.sum([np.where(runs_here, p, 0) for runs_here, p in zip(runs, ticks, strict=True)], axis=0)
        longest = np.maximum(longest, np.where(np.any(runs, axis=0), first + load + last, 0))
    return np.asarray(longest, np.int64)


def _least_where(chosen: Sequence[NDArray[np.bool_]], values: Sequence[Ints]) -> Ints:
    """[placement] → the least value of the chosen ops."""
    far = np.iinfo(np.int64).max // 4
    return np.asarray(np.min([np.where(c, v, far) for c, v in zip(chosen, values, strict=True)], axis=0))
