"""A bound that accounts for memory and the order of layers: Lagrangian relaxation of memory over a chain of stages.

Sections between cut ops run one after another. A *stage* places the blocks that first occur in its sections; the last
block, that of the closing cut op, is its *boundary*. A stage's length depends on its blocks and the previous boundary.
Backward sections over the blocks of a forward stage belong to that stage.

Let x place the blocks, P(x) be the sum of the lengths of the sections, and M_d(x) and W_d(x) the bytes and the ticks of
work on device d. In every schedule of makespan T, P(x) ≤ T, W_d(x) ≤ T and M_d(x) ≤ C_d. Hence, for any prices π, a_d,
λ_d ≥ 0 with π + Σ a_d = 1,

    T ≥ min_x [π P(x) + Σ_d a_d W_d(x) + λ_d M_d(x)] − Σ_d λ_d C_d.

Dynamic programming over the device of the boundary finds the minimum. The prices come from Kelley's cutting planes
(1960): a linear program finds the prices that maximise the least cost of the placements found so far.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.decomposition.sections import find_sections
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time, now

Ints = NDArray[np.int64]

_MOST_CHOICES = 512
"""Most placements of a stage's blocks; a section with more adds nothing to the bound."""

MOST_STAGED = 20_000
"""Ops above which a pass over the stages takes seconds."""

_NEVER, _LARGEST = 2**61, 2**59
"""A value above any cost, and the limit below which sums of costs stay, in whole units of price."""

_PRECISION, _DEAREST = 2e-4, 100.0
"""Share of the bound that better prices may still gain at the end; highest price of all bytes of a device, in
makespans."""


class BlockStage(NamedTuple):
    """The blocks that a stage places, the boundary last, and the cost of every placement.

    Attributes
    ----------
    choices
        [placement][block] → device.
    ticks
        [device of the previous boundary][placement] → least ticks of the stage's sections; None for a single block
        that no section's stage places.
    size, work
        [placement][device] → bytes, and ticks of all ops of the blocks.
    """

    blocks: tuple[int, ...]
    choices: Ints
    ticks: Ints | None
    size: Ints
    work: Ints


class StagePlacement(NamedTuple):
    """A placement {block: device}, ticks of its sections, and bytes and ticks of work on every device."""

    device: dict[int, int]
    ticks: int
    size: Ints
    work: Ints


def build_stages(instance: Instance, last: int, seconds: float) -> list[BlockStage]:
    """The stages of the sections that lead to `last`, as far as time allows, then a stage for every other block."""
    stop_at = now() + seconds
    pieces = [(section.instance, section.ops) for section in find_sections(instance, last, seconds / 2)]
    # Sections end when their last op starts, so the very last op needs a piece of its own.
    pieces.append((instance.restricted([last]), (last,)))
    stage_of: dict[int, int] = {}
    members, paid = list[list[int]](), list[list[tuple[Instance, Sequence[int]]]]()
    for piece, ops in pieces:
        blocks = list(dict.fromkeys(instance.block[op] for op in ops if op != instance.barrier))
        new = sorted((b for b in blocks if b not in stage_of), key=instance.block[ops[-1]].__eq__)
        number = len(members) if new else max((stage_of[block] for block in blocks), default=-1)
        before = members[number - 1][-1] if number > 0 else -1
        known = all(block in new or block == before or stage_of[block] == number for block in blocks)
        if known and prod(len(instance.allowed[instance.members[block][0]]) for block in new) <= _MOST_CHOICES:
            if new:
                members.append(new)
                paid.append([])
                stage_of.update(dict.fromkeys(new, number))
            if number >= 0:
                paid[number].append((piece, ops))
    stages, before = list[BlockStage](), -1
    for blocks, several in zip(members, paid, strict=True):
        if now() > stop_at + seconds:
            break
        stages.append(_stage(instance, blocks, before, several))
        before = blocks[-1]
    placed = {block for stage in stages for block in stage.blocks}
    beside = (block for block in range(len(instance.members)) if block not in placed)
    return stages + [_stage(instance, [block], -1, None) for block in beside if stages]


def _stage(
    instance: Instance, blocks: Sequence[int], boundary: int, pieces: Sequence[tuple[Instance, Sequence[int]]] | None
) -> BlockStage:
    count = instance.device_count
    choices = np.array(list(product(*(instance.allowed[instance.members[block][0]] for block in blocks))), np.int64)
    size, work = np.zeros((2, len(choices), count), np.int64)
    for place, block in enumerate(blocks):
        here = choices[:, place, None] == np.arange(count)
        size += instance.footprint[block] * here
        work += np.sum([instance.duration[op] for op in instance.members[block]], axis=0) * here
    if pieces is None:
        return BlockStage(tuple(blocks), choices, None, size, work)
    where = {block: np.tile(choices[:, place], count) for place, block in enumerate(blocks)}
    before = where[boundary] = np.repeat(np.arange(count), len(choices))
    ticks = np.zeros(len(before), np.int64)
    for piece, ops in pieces:
        ticks += _length(piece, [where.get(instance.block[op], before) for op in ops])
    return BlockStage(tuple(blocks), choices, ticks.reshape(count, -1), size, work)


def _length(piece: Instance, device: Sequence[Ints]) -> Ints:
    """[placement] → least ticks of a piece, by its longest path and each device's least head + work + least tail."""
    tables = {delay: np.array(delay, np.int64) for row in piece.successors for _, delay in row}
    ticks = np.array([np.array(row, np.int64)[here] for row, here in zip(piece.duration, device, strict=True)])
    head, tail = np.zeros_like(ticks), np.zeros_like(ticks)
    for op in piece.order:
        for source, delay in piece.predecessors[op]:
            arrival = head[source] + ticks[source] + tables[delay][device[source], device[op]]
            np.maximum(head[op], arrival, out=head[op])
    for op in reversed(piece.order):
        for target, delay in piece.successors[op]:
            passed = tail[target] + ticks[target] + tables[delay][device[op], device[target]]
            np.maximum(tail[op], passed, out=tail[op])
    longest = (head + ticks + tail).max(axis=0)
    for d in range(piece.device_count):
        runs = (np.array(device) == d) & (ticks > 0)
        first, last = (np.where(runs, values, _NEVER).min(axis=0) for values in (head, tail))
        load = np.where(runs, ticks, 0).sum(axis=0)
        longest = np.maximum(longest, np.where(load > 0, first + load + last, 0))
    return np.asarray(longest, np.int64)


def least_placement(stages: Sequence[BlockStage], path: int, size: Ints, work: Ints) -> tuple[int, StagePlacement]:
    """The least cost of all placements, and a placement of this cost.

    `path` is the price of a tick of the sections; `size` and `work` are [device] → prices of a byte and of a tick of
    work.
    """
    value, trail = np.zeros(len(size), np.int64), list[tuple[Ints, Ints]]()
    for stage in stages:
        ask_time()
        cost = stage.size @ size + stage.work @ work
        if stage.ticks is None:
            value += cost.min()
            trail.append((cost, cost))
            continue
        total = value[:, None] + path * stage.ticks + cost
        came, value = total.argmin(axis=0), np.full(len(size), _NEVER, np.int64)
        np.minimum.at(value, stage.choices[:, -1], total.min(axis=0))
        trail.append((total.min(axis=0), came))
    least, here = int(value.min()), int(value.argmin())
    device: dict[int, int] = {}
    ticks, sizes, works = 0, np.zeros_like(size), np.zeros_like(work)
    for stage, (reached, came) in zip(reversed(stages), reversed(trail), strict=True):
        ends = np.arange(len(reached)) if stage.ticks is None else np.flatnonzero(stage.choices[:, -1] == here)
        chosen = int(ends[reached[ends].argmin()])
        if stage.ticks is not None:
            here = int(came[chosen])
            ticks += int(stage.ticks[here, chosen])
        device.update(zip(stage.blocks, stage.choices[chosen].tolist(), strict=True))
        sizes += stage.size[chosen]
        works += stage.work[chosen]
    return least, StagePlacement(device, ticks, sizes, works)


class StageDual:
    """The dual problem of the stages: the best bound so far, and the placements found."""

    def __init__(self, stages: Sequence[BlockStage], capacity: Sequence[int | None]) -> None:
        self.stages, self.bound, self.found = stages, 0, list[StagePlacement]()
        self.capacity = np.array([-1 if room is None else room for room in capacity], np.int64)
        self.scale = float(max(1, sum(int(stage.ticks.max()) for stage in stages if stage.ticks is not None)))

    def solve(self, enough: int) -> None:
        """Raise the bound until it reaches `enough` or better prices gain little; `ask_time` limits the time."""
        count = len(self.capacity)
        most, prices = float("inf"), np.array([1.0, *[0.0] * (2 * count)])
        while self.bound < enough and most - self.bound > _PRECISION * self.bound:
            self._raise(prices[0], prices[1 : 1 + count], prices[1 + count :])
            most, prices = self._next_prices()

    def _raise(self, path: float, work: NDArray[np.float64], size: NDArray[np.float64]) -> None:
        """Raise the bound with these prices, in the largest integers whose sums cannot overflow."""
        most = path * self.scale + 1.0 + sum(float((s.size @ size + s.work @ work).max()) for s in self.stages)
        unit = _LARGEST / most
        whole_path, whole_work, whole_size = int(path * unit), (work * unit).astype(int), (size * unit).astype(int)
        cost, placed = least_placement(self.stages, whole_path, whole_size, whole_work)
        self.found.append(placed)
        paid = sum(int(price) * int(room) for price, room in zip(whole_size, self.capacity, strict=True))
        self.bound = max(self.bound, -((paid - cost) // (whole_path + int(whole_work.sum()))))

    def _next_prices(self) -> tuple[float, NDArray[np.float64]]:
        """The highest bound that the placements so far allow, and its prices of paths, work and bytes."""
        from scipy.optimize import linprog

        count, rooms = len(self.capacity), np.maximum(self.capacity, 1)
        found, scale = self.found, self.scale
        rows = [[1.0, -one.ticks / scale, *(-one.work / scale), *(1.0 - one.size / rooms)] for one in found]
        apart = 1.0 if any(stage.ticks is None and stage.work.any() for stage in self.stages) else 0.0
        # Unlimited memory has no price: its capacity would refund nothing.
        dearest = [(0, _DEAREST if room >= 0 else 0) for room in self.capacity]
        solved = linprog(
            [-1.0, *[0.0] * (1 + 2 * count)],
            A_ub=rows,
            b_ub=[0.0] * len(rows),
            A_eq=[[0.0, 1.0, *[1.0] * count, *[0.0] * count]],
            b_eq=[1.0],
            bounds=[(0, 1e3), (0, 1), *[(0, apart)] * count, *dearest],
            method="highs",
        )
        if solved.status:
            return 0.0, np.array([1.0, *[0.0] * (2 * count)])
        path, work, size = solved.x[1], solved.x[2 : 2 + count], solved.x[2 + count :]
        return solved.x[0] * self.scale, np.array([path, *work, *(size / rooms * self.scale)])
