"""Ops that run one after another whatever the placement, where memory is short: annealing of the placement alone.

The length of a path through all ops is then the makespan, and a move changes a few sums of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Event
from typing import NamedTuple

import numpy as np

from dlplacer.solvers.decode.arrays import Ints
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decode.machine_code import machine_code
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import count_work, now

_EXCHANGES, _LONGER = 0.4, 0.6
"""Share of moves that exchange two blocks, and the chance that a stretch goes on at each op."""


class PathTables(NamedTuple):
    """The cost of a placement along a path.

    Attributes
    ----------
    blocks
        [position on the path] → block.
    first, positions
        `positions[first[block] : first[block + 1]]` are those of a block, ascending.
    work
        [block, device] → ticks of its ops on the path.
    delay
        [position, device, device] → ticks from an op of the path to the next.
    allowed
        [block, device] → 1 or 0.
    size
        [block] → bytes.
    """

    blocks: Ints
    first: Ints
    positions: Ints
    work: Ints
    delay: Ints
    allowed: Ints
    size: Ints


def _arcs(tables: PathTables, place: Ints, block: int) -> int:
    """Ticks of the arcs at a block's ops, each arc once."""
    blocks, last, ticks = tables.blocks, tables.blocks.shape[0] - 1, 0
    for number in range(tables.first[block], tables.first[block + 1]):
        position = tables.positions[number]
        here = place[block]
        if position < last:
            ticks += tables.delay[position, here, place[blocks[position + 1]]]
        if position > 0 and blocks[position - 1] != block:
            ticks += tables.delay[position - 1, place[blocks[position - 1]], here]
    return int(ticks)


def _move(tables: PathTables, place: Ints, left: Ints, block: int, device: int) -> int:
    """Put a block elsewhere; the ticks by which the path becomes longer."""
    here = place[block]
    before = tables.work[block, here] + _arcs(tables, place, block)
    place[block] = device
    left[here] += tables.size[block]
    left[device] -= tables.size[block]
    return int(tables.work[block, device] + _arcs(tables, place, block) - before)


def _propose(tables: PathTables, place: Ints, moved: Ints, exchange: bool) -> int:
    """A stretch of the path for one device, or two blocks for each other's: rows (block, device); how many."""
    blocks, devices = tables.blocks, tables.work.shape[1]
    position = np.random.randint(blocks.shape[0])
    block, count = blocks[position], 0
    if exchange:
        other = blocks[np.random.randint(blocks.shape[0])]
        here, there = place[block], place[other]
        if here != there and tables.allowed[block, there] and tables.allowed[other, here]:
            moved[0, 0], moved[0, 1] = block, there
            moved[1, 0], moved[1, 1] = other, here
            return 2
        return 0
    device = np.random.randint(devices)
    while position < blocks.shape[0] and count < moved.shape[0]:
        block = blocks[position]
        if tables.allowed[block, device] and place[block] != device:
            moved[count, 0], moved[count, 1] = block, device
            count += 1
        if np.random.random() >= _LONGER:
            break
        position += 1
    return count


def _none_lacks(left: Ints) -> bool:
    least = 0
    for device in range(left.shape[0]):
        least = min(least, left[device])
    return least == 0


def anneal_path(
    tables: PathTables,
    place: Ints,
    left: Ints,
    best: Ints,
    moved: Ints,
    length: int,
    moves: int,
    temperature: float,
    seed: int,
) -> int:
    """Try so many moves; the least length in ticks that was come by, -1 if nothing fitted.

    Parameters
    ----------
    place, left
        [block] → device, and [device] → bytes that are left: changed, and possibly below 0 at first.
    best
        [block] → device: the shortest placement under which no device lacks bytes.
    moved
        Room for the longest stretch that moves at once, at least two rows.
    length
        Ticks of the path under `place`.
    """
    np.random.seed(seed)
    least = -1
    for _ in range(moves):
        if (least < 0 or length < least) and _none_lacks(left):
            least = length
            for block in range(place.shape[0]):
                best[block] = place[block]
        count = _propose(tables, place, moved, np.random.random() < _EXCHANGES)
        change, fits = 0, True
        for row in range(count):
            block, device = moved[row, 0], moved[row, 1]
            moved[row, 1] = place[block]
            change += _move(tables, place, left, block, device)
        for row in range(count):
            device = place[moved[row, 0]]
            # A device that is too full may become less so.
            fits = fits and left[device] >= 0
        if not fits or (change > 0 and np.random.random() >= np.exp(-change / temperature)):
            for row in range(count - 1, -1, -1):
                _move(tables, place, left, moved[row, 0], moved[row, 1])
        else:
            length += change
    return least


@dataclass(frozen=True)
class SerialParams:
    """Settings of the annealing of placements.

    Attributes
    ----------
    round_s, rounds, patience
        Seconds of a round by op and device, if there is time for so many rounds, and how many in a row may bring
        nothing. Each cools down once and begins with the placement of the last.
    first_temperature, last_temperature
        In mean durations of an op of the path.
    chunk_s
        Seconds between two looks at the clock.
    steps
        The smallest memory in steps of the room that placements leave.
    stretch
        Blocks that move at once, at most.
    """

    round_s: float = 1e-3
    rounds: int = 12
    patience: int = 8
    first_temperature: float = 0.5
    last_temperature: float = 0.0025
    chunk_s: float = 0.02
    steps: int = 256
    stretch: int = 16


PARAMS = SerialParams()

_MOVE_S = 1e-6
"""Seconds of work for a move of the compiled code."""
_FEWEST_MOVES = 256
"""Moves of the first chunk, and of every one at least."""


def anneal_serial(instance: Instance, incumbent: Incumbent, path: Sequence[int], seconds: float) -> None:
    """Offer the best placements found, each with its ops in topological order.

    Memory over time is known to the incumbent alone: where it refuses a placement, the next ones leave more room on
    every device, and less where it does not.

    Parameters
    ----------
    path
        All ops that take time, each after the one before.
    """
    assert incumbent.best is not None
    began, budget, seed = now(), incumbent.budget, incumbent.budget.seed % 2**31
    tables, mean = path_tables(instance, path), sum(instance.mean_duration[op] for op in path) / len(path)
    round_s = min(PARAMS.round_s * len(path) * instance.device_count, seconds / PARAMS.rounds)
    placement = [incumbent.best.device[ops[0]] for ops in instance.members]
    step = min((size for size in instance.capacity if size is not None), default=0) // PARAMS.steps
    refused, accepted, room, in_vain = 0, math.inf, 0, 0
    while now() < began + seconds and in_vain < PARAMS.patience and budget.left_s and not incumbent.closed:
        before = incumbent.best.makespan
        search = _Search(instance, tables, placement, room)
        left_s = max(PARAMS.chunk_s, min(round_s, began + seconds - now()))
        seed = search.cool(mean, left_s, seed, budget.stop)
        found = search.found()
        if found is not None:
            placement = found
        devices = [placement[block] for block in instance.block]
        if found is None or incumbent.accepts(in_sequence(instance, devices, instance.order)):
            accepted = room
        else:
            refused = room
        in_vain = in_vain + 1 if incumbent.best.makespan == before else 0
        between = 2 * refused if math.isinf(accepted) else (refused + int(accepted)) // 2
        room = max(between, step) if accepted - refused > step else int(accepted)


def compile_path_code(instance: Instance) -> None:
    """Have the code above compiled."""
    search = _Search(instance, path_tables(instance, instance.order), [0] * len(instance.members), 0)
    search.cool(1.0, 1e-3, 0, Event())


def path_tables(instance: Instance, path: Sequence[int]) -> PathTables:
    """The costs of placements along a path."""
    blocks = [instance.block[op] for op in path]
    work = np.zeros((len(instance.members), instance.device_count), np.int64)
    at: list[list[int]] = [[] for _ in instance.members]
    for position, (op, block) in enumerate(zip(path, blocks, strict=True)):
        work[block] += np.array(instance.duration[op], np.int64)
        at[block].append(position)
    delay = np.zeros((len(path), instance.device_count, instance.device_count), np.int64)
    for position, (op, behind) in enumerate(pairwise(path)):
        delay[position] = next(ticks for target, ticks in instance.successors[op] if target == behind)
    allowed = np.zeros(work.shape, np.int64)
    for block, ops in enumerate(instance.members):
        allowed[block, list(instance.allowed[ops[0]])] = 1
    first = np.cumsum([0, *map(len, at)], dtype=np.int64)
    positions = np.array([position for row in at for position in row], np.int64)
    size = np.array(instance.footprint, np.int64)
    return PathTables(np.array(blocks, np.int64), first, positions, work, delay, allowed, size)


class _Search:
    """A placement that moves, and the best one that leaves enough room."""

    def __init__(self, instance: Instance, tables: PathTables, placement: Sequence[int], room: int) -> None:
        self._tables, self._place, self._least = tables, np.array(placement, np.int64), -1
        self._best, self._moved = self._place.copy(), np.zeros((PARAMS.stretch, 2), np.int64)
        self._left = np.array([2**62 if size is None else size - room for size in instance.capacity], np.int64)
        np.subtract.at(self._left, self._place, tables.size)

    def found(self) -> list[int] | None:
        """[block] → device; None if nothing leaves enough room."""
        return None if self._least < 0 else [int(device) for device in self._best]

    def cool(self, mean: float, seconds: float, seed: int, stop: Event) -> int:
        """Moves of less and less use for some time; the next seed."""
        began, best, moves = now(), self._best.copy(), _FEWEST_MOVES
        while (spent := (now() - began) / seconds) < 1 and not stop.is_set():
            seed += 1
            temperature = self._temperature(mean, spent)
            asked = now()
            least = machine_code(anneal_path)(
                self._tables, self._place, self._left, best, self._moved, self._length(), moves, temperature, seed
            )
            count_work(_MOVE_S * moves)
            if least >= 0 and (self._least < 0 or least < self._least):
                self._least, self._best = least, best.copy()
            in_time = int(moves * PARAMS.chunk_s / max(1e-6, now() - asked))
            moves = max(_FEWEST_MOVES, min(4 * moves, in_time))
        return seed

    def _temperature(self, mean: float, spent: float) -> float:
        falls = math.log(PARAMS.last_temperature / PARAMS.first_temperature)
        return max(1e-9, PARAMS.first_temperature * mean * math.exp(falls * spent))

    def _length(self) -> int:
        tables, place = self._tables, self._place
        along = place[tables.blocks]
        work = tables.work[np.arange(len(place)), place].sum()
        return int(work + tables.delay[np.arange(len(along) - 1), along[:-1], along[1:]].sum())
