"""Simulated annealing of a placement whose largest load is to be small (Kirkpatrick et al. 1983).

Loads are sums over blocks and over what is sent between their devices, so a move changes a few of them. They may be
those of devices and links (objective throughput), or one alone: the length of a path that runs through all ops.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dlplacer.solvers.decode.arrays import UNLIMITED
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decode.machine_code import is_kept, run
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.placement_loads import Ints, PlacementTables, path_tables
from dlplacer.solvers.instance.schedule import Incumbent
from dlplacer.solvers.instance.time_limit import ask_time, count_work, now

_NEAR, _STRETCHES, _EXCHANGES = 0.5, 0.75, 0.9
"""Shares of moves, summed up: of a block to a block that it talks to, of a stretch, of two blocks that exchange."""

_LONGER = 0.8
"""The chance that a stretch goes on at each block."""


class PlacementState(NamedTuple):
    """A placement that moves: [block] → device, [request, device] → readers there, loads and bytes that are left."""

    place: Ints
    readers: Ints
    busy: Ints
    left: Ints


def _charge(tables: PlacementTables, state: PlacementState, request: int, sign: int) -> None:
    """Add what a request costs under the placement, or take it away."""
    devices = state.left.shape[0]
    here, kind = state.place[tables.source[request]], tables.kind[request]
    sent = 0
    for there in range(devices):
        if there != here and state.readers[request, there] > 0:
            state.busy[tables.load_of[there]] += sign * tables.received[kind, here, there]
            sent = max(sent, tables.sent[kind, here, there])
            row = (kind * devices + here) * devices + there
            for number in range(tables.first_link[row], tables.first_link[row + 1]):
                state.busy[tables.link[number]] += sign * tables.link_ticks[number]
    state.busy[tables.load_of[here]] += sign * sent


def put(tables: PlacementTables, state: PlacementState, block: int, device: int) -> None:
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
    state.busy[tables.load_of[here]] -= tables.work[block, here]
    state.busy[tables.load_of[device]] += tables.work[block, device]
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


def _near(tables: PlacementTables, state: PlacementState, block: int) -> int:
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


def _propose(tables: PlacementTables, state: PlacementState, moved: Ints) -> int:
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


def anneal_placement(
    tables: PlacementTables,
    state: PlacementState,
    best: Ints,
    moved: Ints,
    least: int,
    moves: int,
    scale: float,
    temperature: float,
    seed: int,
) -> int:
    """Try so many moves; the least largest load in ticks so far, whose placement is in `best`.

    Parameters
    ----------
    least
        The largest load of `best`, -1 if it is none.
    moved
        Room for the longest stretch, at least two rows.
    scale
        Ticks near the largest load, in which the temperature counts.
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
        largest, lacks = 0, 0
        for number in range(state.busy.shape[0]):
            largest = max(largest, state.busy[number])
        for device in range(state.left.shape[0]):
            lacks = min(lacks, state.left[device])
        if lacks == 0 and (least < 0 or largest < least):
            least = largest
            for block in range(best.shape[0]):
                best[block] = state.place[block]
    return least


@dataclass(frozen=True)
class PlacementAnnealingParams:
    """Settings of the annealing.

    Attributes
    ----------
    chunk_s
        Seconds between looks at the clock.
    move_s
        Seconds of work that a move counts for.
    stretch
        The most blocks that move at once.
    fewest_moves
        Between two looks.
    """

    chunk_s: float = 0.05
    move_s: float = 2e-6
    stretch: int = 32
    fewest_moves: int = 200


PARAMS = PlacementAnnealingParams()

PLACEMENT_CODE = (anneal_placement,)
"""The kernel."""


class PlacementAnnealing:
    """A search for placements, to be stopped and gone on with.

    Attributes
    ----------
    least, best
        The least largest load found in ticks, -1 if no placement fitted yet, and its placement by block.
    """

    def __init__(self, tables: PlacementTables, capacity: Sequence[int | None], room: int = 0) -> None:
        """Leave `room` bytes of every limited memory free."""
        self._tables = tables
        self._capacity = [UNLIMITED if size is None else size - room for size in capacity]
        self.least, self.best = -1, np.zeros(len(tables.size), np.int64)

    def begin(self, place: Sequence[int]) -> None:
        """Go on from a placement."""
        tables = self._tables
        self._state = state = PlacementState(
            np.zeros(len(tables.size), np.int64),
            np.zeros((len(tables.source), len(self._capacity)), np.int64),
            np.zeros(tables.load_count, np.int64),
            np.array(self._capacity, np.int64),
        )
        state.readers[:, 0] = np.diff(tables.first_reader)
        state.busy[tables.load_of[0]] = tables.work[:, 0].sum()
        state.left[0] -= tables.size.sum()
        for block, device in enumerate(place):
            put(tables, state, block, device)
        largest = int(state.busy.max())
        if (state.left >= 0).all() and (self.least < 0 or largest < self.least):
            self.least, self.best = largest, state.place.copy()

    def cool(self, temperatures: tuple[float, float], seconds: float, seed: int, is_over: Callable[[], bool]) -> None:
        """Moves for some time, from the first temperature to the last, which are shares of the largest load."""
        # Whoever comes late has a chunk left, by which the temperature falls.
        began, seconds, moves, state = now(), max(PARAMS.chunk_s, seconds), PARAMS.fewest_moves, self._state
        fast, moved = is_kept(PLACEMENT_CODE) or seconds > 10, np.zeros((PARAMS.stretch, 2), np.int64)
        scale = float(max(1, state.busy.max()))
        falls = math.log(temperatures[1] / temperatures[0])
        while (spent := (now() - began) / seconds) < 1 and not is_over():
            ask_time()
            seed, asked = seed + 1, now()
            temperature = temperatures[0] * math.exp(falls * spent)
            self.least = run(
                anneal_placement, fast, self._tables, state, self.best, moved, self.least, moves, scale, temperature,
                seed % 2**31,
            )  # fmt: skip
            count_work(PARAMS.move_s * moves)
            in_time = int(moves * PARAMS.chunk_s / max(1e-6, now() - asked))
            moves = max(PARAMS.fewest_moves, min(4 * moves, in_time))


@dataclass(frozen=True)
class SerialParams:
    """Settings of the annealing of placements.

    Attributes
    ----------
    round_s, rounds, patience
        Seconds of a round by op and device, if there is time for so many rounds, and how many in a row may bring
        nothing. Each cools down once and begins with the placement of the last.
    temperatures
        The first and the last, in mean durations of an op of the path.
    steps
        The smallest memory in steps of the room that placements leave.
    """

    round_s: float = 1e-3
    rounds: int = 12
    patience: int = 8
    temperatures: tuple[float, float] = (0.5, 0.0025)
    steps: int = 256


SERIAL = SerialParams()


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
    began, budget, tables = now(), incumbent.budget, path_tables(instance, path)
    round_s = min(SERIAL.round_s * len(path) * instance.device_count, seconds / SERIAL.rounds)
    first, last = (temperature / len(path) for temperature in SERIAL.temperatures)
    place = [incumbent.best.device[ops[0]] for ops in instance.members]
    step = min((size for size in instance.capacity if size is not None), default=0) // SERIAL.steps
    refused, accepted, room, in_vain, turn = 0, math.inf, 0, 0, 0
    while now() < began + seconds and in_vain < SERIAL.patience and budget.left_s and not incumbent.closed:
        before, turn = incumbent.best.makespan, turn + 1
        search = PlacementAnnealing(tables, instance.capacity, room)
        search.begin(place)
        left_s = min(round_s, began + seconds - now())
        search.cool((first, last), left_s, 1000 * (budget.seed + turn), budget.stop.is_set)
        if search.least >= 0:
            place = search.best.tolist()
        devices = [place[block] for block in instance.block]
        if search.least < 0 or incumbent.accepts(in_sequence(instance, devices, instance.order)):
            accepted = room
        else:
            refused = room
        in_vain = in_vain + 1 if incumbent.best.makespan == before else 0
        between = 2 * refused if math.isinf(accepted) else (refused + int(accepted)) // 2
        room = max(between, step) if accepted - refused > step else int(accepted)
