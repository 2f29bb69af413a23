"""A chain of segments as stages of a dynamic program: each decides where the blocks of a segment go.

The segments between cut ops run one after another, so the sum of their lengths bounds the makespan. A stage holds the
blocks that occur in its segments for the first time. What its segments take depends on these and on the device of the
stage before, where the first cut op of a segment lies. Where forward and backward ops share blocks, the backward
segments belong to the stages of the forward ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.live_memory import Stash
from dlplacer.solvers.decomposition.segments import find_segments
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import now

Ints = NDArray[np.int64]

_MOST_CHOICES = 512
"""Placements of a stage's blocks; a segment of more counts as nothing. A layer of three parallel ops has 256 on four
devices."""


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
    """The stages, and the blocks of no stage."""

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
            plan.add(segment.instance, segment.ops)
    # Segments end when their last op starts: the last of all takes its time too.
    plan.add(instance.restricted([last]), [last])
    stages = tuple(takewhile(lambda _: now() < stop_at + seconds, plan.stages(kept)))
    placed = {block for stage in stages for block in stage.blocks}
    return StageChain(stages, tuple(block for block in range(len(instance.members)) if block not in placed))


class _Plan:
    """Blocks per stage and the pieces of the graph whose lengths each stage pays, while they are collected."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.blocks: list[tuple[int, ...]] = []
        self.pieces: list[list[tuple[Instance, Sequence[int]]]] = []
        self.stage_of: dict[int, int] = {}

    def add(self, piece: Instance, ops: Sequence[int]) -> None:
        """Give a piece to the stage that knows all of its blocks, which may be a new one; else it counts as nothing."""
        instance = self.instance
        blocks = list(dict.fromkeys(instance.block[op] for op in ops if op != instance.barrier))
        end = instance.block[ops[-1]]
        new = sorted((block for block in blocks if block not in self.stage_of), key=lambda block: block == end)
        choices = prod(len(instance.allowed[instance.members[block][0]]) for block in new)
        if new and choices <= _MOST_CHOICES and self._suits(len(self.blocks), blocks, new):
            self.stage_of.update(dict.fromkeys(new, len(self.blocks)))
            self.blocks.append(tuple(new))
            self.pieces.append([])
        number = max((self.stage_of.get(block, -1) for block in blocks), default=-1)
        if number >= 0 and self._suits(number, blocks):
            self.pieces[number].append((piece, ops))

    def _before(self, number: int) -> int:
        return self.blocks[number - 1][-1] if number else -1

    def _suits(self, number: int, blocks: Iterable[int], new: Sequence[int] = ()) -> bool:
        """True if the blocks are those of a stage, new ones, or the boundary before the stage."""
        before = self._before(number)
        return all(block in new or block == before or self.stage_of.get(block) == number for block in blocks)

    def stages(self, kept: Sequence[Stash]) -> Iterator[DecisionStage]:
        """The stages with all their placements."""
        instance, devices = self.instance, np.arange(self.instance.device_count)
        pairs: dict[int, list[tuple[int, int, int]]] = {}
        for stash in kept:
            ends = instance.block[stash.source], instance.block[stash.reader]
            number = max(self.stage_of.get(block, -1) for block in ends)
            if number >= 0 and self._suits(number, ends):
                pairs.setdefault(number, []).append((*ends, stash.size))
        for number, blocks in enumerate(self.blocks):
            grids = np.meshgrid(*(np.array(instance.allowed[instance.members[b][0]]) for b in blocks), indexing="ij")
            choices = np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
            shape = len(devices), len(choices)
            before = np.repeat(devices, len(choices))
            where = {block: np.tile(choices[:, place], len(devices)) for place, block in enumerate(blocks)}
            where[self._before(number)] = before
            ticks, sizes = np.zeros(prod(shape), np.int64), np.zeros((prod(shape), len(devices)), np.int64)
            for piece, ops in self.pieces[number]:
                ticks += _length(piece, [where.get(instance.block[op], before) for op in ops])
            for block in blocks:
                sizes += instance.footprint[block] * (where[block][:, None] == devices)
            for a, b, size in pairs.get(number, ()):
                sizes += size * ((where[a] == where[b])[:, None] & (where[a][:, None] == devices))
            work = np.zeros((len(choices), len(devices)), np.int64)
            for place, block in enumerate(blocks):
                own = np.sum([instance.duration[op] for op in instance.members[block]], axis=0)
                work += own * (choices[:, place, None] == devices)
            yield DecisionStage(blocks, choices, ticks.reshape(shape), sizes.reshape(*shape, len(devices)), work)


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
    heads, times, tails, far = np.array(head), np.array(ticks), np.array(tail), np.iinfo(np.int64).max // 4
    for d in range(piece.device_count):
        runs = (np.array(device) == d) & (times > 0)
        first, last = (np.where(runs, values, far).min(axis=0) for values in (heads, tails))
        load = first + np.where(runs, times, 0).sum(axis=0) + last
        longest = np.maximum(longest, np.where(runs.any(axis=0), load, 0))
    return np.asarray(longest, np.int64)
