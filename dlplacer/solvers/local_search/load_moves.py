"""Simulated annealing of a placement towards a least largest load, in machine code: moves, and what they change."""

from typing import NamedTuple

import numpy as np

from dlplacer.solvers.decode.arrays import Ints

_NEAR, _STRETCHES, _EXCHANGES = 0.5, 0.75, 0.9
"""Shares of moves, summed up: of a block to a block that it talks to, of a stretch, of two blocks that exchange."""

_LONGER = 0.8
"""The chance that a stretch goes on at each block."""


class LoadTables(NamedTuple):
    """The loads of a placement.

    Attributes
    ----------
    work
        [block, device] → ticks of its ops.
    allowed
        [block, device] → 1 or 0.
    size
        [block] → bytes.
    order, turn
        The blocks in a topological order of their first ops, and [block] → its position there.
    source, kind
        [request] → the block that sends it, and the row of its prices.
    first_reader, reader
        `reader[first_reader[request] : first_reader[request + 1]]` are the blocks that read it, but for its source.
    first_at, at
        The same for [block] → requests that it sends or reads.
    sent, received
        [kind, device, device] → ticks that the ends pay.
    first_link, link, link_ticks
        The same for [kind × devices² + device × devices + device] → resources that carry it, and for how long.
    """

    work: Ints
    allowed: Ints
    size: Ints
    order: Ints
    turn: Ints
    source: Ints
    kind: Ints
    first_reader: Ints
    reader: Ints
    first_at: Ints
    at: Ints
    sent: Ints
    received: Ints
    first_link: Ints
    link: Ints
    link_ticks: Ints


class LoadState(NamedTuple):
    """A placement that moves: [block] → device, [request, device] → readers there, loads and bytes that are left."""

    place: Ints
    readers: Ints
    busy: Ints
    left: Ints


def _charge(tables: LoadTables, state: LoadState, request: int, sign: int) -> None:
    """Add what a request costs under the placement, or take it away."""
    devices = state.left.shape[0]
    here, kind = state.place[tables.source[request]], tables.kind[request]
    sent = 0
    for there in range(devices):
        if there != here and state.readers[request, there] > 0:
            state.busy[there] += sign * tables.received[kind, here, there]
            sent = max(sent, tables.sent[kind, here, there])
            row = (kind * devices + here) * devices + there
            for number in range(tables.first_link[row], tables.first_link[row + 1]):
                state.busy[tables.link[number]] += sign * tables.link_ticks[number]
    state.busy[here] += sign * sent


def put(tables: LoadTables, state: LoadState, block: int, device: int) -> None:
    """Put a block elsewhere."""
    here = state.place[block]
    begin, end = tables.first_at[block], tables.first_at[block + 1]
    for number in range(begin, end):
        _charge(tables, state, tables.at[number], -1)
    for number in range(begin, end):
        request = tables.at[number]
        if tables.source[request] != block:
            state.readers[request, here] -= 1
            state.readers[request, device] += 1
    state.place[block] = device
    for number in range(begin, end):
        _charge(tables, state, tables.at[number], 1)
    state.busy[here] -= tables.work[block, here]
    state.busy[device] += tables.work[block, device]
    state.left[here] += tables.size[block]
    state.left[device] -= tables.size[block]


def _energy(busy: Ints, scale: float) -> float:
    """About the largest load as a share of `scale`: a norm that also knows the others."""
    total = 0.0
    for number in range(busy.shape[0]):
        share = busy[number] / scale
        share *= share
        share *= share
        total += share * share
    return float(total**0.125)


def _near(tables: LoadTables, state: LoadState, block: int) -> int:
    """The device of a block at the other end of one of its requests; a random device where it has none elsewhere."""
    begin, end = tables.first_at[block], tables.first_at[block + 1]
    device = state.place[block]
    if begin < end:
        request = tables.at[np.random.randint(begin, end)]
        other = tables.source[request]
        if other == block:
            other = tables.reader[np.random.randint(tables.first_reader[request], tables.first_reader[request + 1])]
        device = state.place[other]
    if device == state.place[block]:
        return int(np.random.randint(state.left.shape[0]))
    return int(device)


def _propose(tables: LoadTables, state: LoadState, moved: Ints) -> int:
    """Write the blocks to move and their devices; their number."""
    block, share = np.random.randint(state.place.shape[0]), np.random.random()
    here = state.place[block]
    device = _near(tables, state, block)
    if share >= _EXCHANGES:
        device = np.random.randint(state.left.shape[0])
    if device == here or not tables.allowed[block, device]:
        return 0
    moved[0, 0], moved[0, 1] = block, device
    if share < _NEAR or share >= _EXCHANGES:
        return 1
    if share >= _STRETCHES:
        other = np.random.randint(state.place.shape[0])
        if state.place[other] != device or not tables.allowed[other, here]:
            return 0
        moved[1, 0], moved[1, 1] = other, here
        return 2
    count, step = 1, 1
    if np.random.random() < 0.5:
        step = -1
    position = tables.turn[block] + step
    while 0 <= position < tables.order.shape[0] and count < moved.shape[0] and np.random.random() < _LONGER:
        other = tables.order[position]
        if state.place[other] == here and tables.allowed[other, device]:
            moved[count, 0], moved[count, 1] = other, device
            count += 1
        position += step
    return count


def anneal_loads(
    tables: LoadTables,
    state: LoadState,
    best: Ints,
    moved: Ints,
    least: int,
    moves: int,
    scale: float,
    temperature: float,
    seed: int,
) -> int:
    """Try so many moves; the least period in ticks so far, whose placement is in `best`.

    Parameters
    ----------
    least
        The period of `best`.
    moved
        Room for the longest stretch, at least two rows.
    scale
        Ticks near the period, in which the temperature counts.
    """
    np.random.seed(seed)
    energy = _energy(state.busy, scale)
    for _ in range(moves):
        count = _propose(tables, state, moved)
        for row in range(count):
            block, device = moved[row, 0], moved[row, 1]
            moved[row, 1] = state.place[block]
            put(tables, state, block, device)
        fits = True
        for row in range(count):
            # A device that is too full may become less so.
            fits = fits and state.left[state.place[moved[row, 0]]] >= 0
        after = _energy(state.busy, scale)
        if not fits or (after > energy and np.random.random() >= np.exp((energy - after) / temperature)):
            for row in range(count - 1, -1, -1):
                put(tables, state, moved[row, 0], moved[row, 1])
            continue
        energy = after
        period, lacks = 0, 0
        for number in range(state.busy.shape[0]):
            period = max(period, state.busy[number])
        for device in range(state.left.shape[0]):
            lacks = min(lacks, state.left[device])
        if lacks == 0 and (least < 0 or period < least):
            least = period
            for block in range(best.shape[0]):
                best[block] = state.place[block]
    return least
