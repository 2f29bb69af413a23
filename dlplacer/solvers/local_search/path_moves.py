"""Simulated annealing of a placement along a path, in machine code: moves, and what they change."""

from typing import NamedTuple

import numpy as np

from dlplacer.solvers.decode.arrays import Ints

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
