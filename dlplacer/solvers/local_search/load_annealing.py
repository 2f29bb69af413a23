"""Placements of small largest load: contiguous runs by dynamic programming, then simulated annealing."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.loads import APART, Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.decode.arrays import Ints
from dlplacer.solvers.decode.machine_code import is_kept, run
from dlplacer.solvers.heuristics.contiguous import units_in_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time, count_work, now

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


Floats = NDArray[np.float64]
UNLIMITED = 2**62


@dataclass(frozen=True)
class LoadAnnealingParams:
    """Settings of the annealing; temperatures are shares of the period.

    Attributes
    ----------
    first_temperature, last_temperature
        At the beginning and at the end of a round.
    chunk_s
        Seconds between looks at the clock.
    move_s
        Seconds of work that a move counts for.
    stretch
        The most blocks that move at once.
    most_units, sweeps, most_states
        Of the contiguous runs: units of blocks and sets of devices at most, and sweeps over backward blocks.
    """

    first_temperature: float = 0.02
    last_temperature: float = 0.0002
    chunk_s: float = 0.05
    move_s: float = 2e-6
    stretch: int = 32
    most_units: int = 2000
    sweeps: int = 20
    most_states: int = 64


PARAMS = LoadAnnealingParams()


def load_tables(problem: Problem, instance: Instance, loads: Loads) -> LoadTables:
    """The tables of all placements."""
    blocks, devices = len(instance.members), instance.device_count
    work, allowed = np.zeros((blocks, devices), np.int64), np.zeros((blocks, devices), np.int64)
    for block, ops in enumerate(instance.members):
        work[block] = np.sum([instance.duration[op] for op in ops], axis=0)
        allowed[block, list(instance.allowed[ops[0]])] = 1
    order = list(dict.fromkeys(instance.block[op] for op in instance.order))
    turn = np.argsort(np.array(order, np.int64))
    sent = list(_sent(instance, loads))
    at: list[list[int]] = [[] for _ in range(blocks)]
    for number, (source, readers, _) in enumerate(sent):
        for block in (source, *readers):
            at[block].append(number)
    kinds = range(len(problem.sizes_bytes))
    pairs = [(kind, a, b) for kind in kinds for a in range(devices) for b in range(devices)]
    paid = np.array([loads.paid(*pair) for pair in pairs], np.int64).reshape(len(kinds), devices, devices, 2)
    held = [[] if a == b else loads.on_links(kind, a, b) for kind, a, b in pairs]
    first_link, links = _rows([[devices + number for number, _ in row] for row in held])
    first_reader, reader = _rows([readers for _, readers, _ in sent])
    first_at, requests = _rows(at)
    return LoadTables(
        work,
        allowed,
        np.array(instance.footprint, np.int64),
        np.array(order, np.int64),
        turn,
        np.array([source for source, _, _ in sent], np.int64),
        np.array([kind for _, _, kind in sent], np.int64),
        first_reader,
        reader,
        first_at,
        requests,
        paid[..., 0].copy(),
        paid[..., 1].copy(),
        first_link,
        links,
        np.array([ticks for row in held for _, ticks in row], np.int64),
    )


def _sent(instance: Instance, loads: Loads) -> Iterable[tuple[int, list[int], int]]:
    for request in loads.requests:
        source = instance.block[request.source]
        readers = sorted({instance.block[reader] for reader in request.readers} - {source})
        if readers:
            yield source, readers, request.size


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return first, np.array([value for row in rows for value in row], np.int64)


class LoadAnnealing:
    """A search for placements, to be stopped and gone on with.

    Attributes
    ----------
    least, best
        The least period found in ticks, -1 if no placement fitted yet, and its placement by block.
    """

    def __init__(self, tables: LoadTables, capacity: Sequence[int | None], link_count: int) -> None:
        self._tables, self._capacity = tables, [UNLIMITED if size is None else size for size in capacity]
        self._link_count = link_count
        self.least, self.best = -1, np.zeros(len(tables.size), np.int64)

    def begin(self, place: Sequence[int]) -> None:
        """Go on from a placement."""
        tables, devices = self._tables, len(self._capacity)
        self._state = state = LoadState(
            np.zeros(len(tables.size), np.int64),
            np.zeros((len(tables.source), devices), np.int64),
            np.zeros(devices + self._link_count, np.int64),
            np.array(self._capacity, np.int64),
        )
        state.readers[:, 0] = np.diff(tables.first_reader)
        state.busy[0], state.left[0] = tables.work[:, 0].sum(), state.left[0] - tables.size.sum()
        for block, device in enumerate(place):
            put(tables, state, block, device)
        period = int(state.busy.max())
        if (state.left >= 0).all() and (self.least < 0 or period < self.least):
            self.least, self.best = period, state.place.copy()

    def cool(self, seconds: float, seed: int, is_over: Callable[[], bool]) -> None:
        """Moves of less and less use for some time."""
        # Whoever comes late has a chunk left, by which the temperature falls.
        began, seconds, moves, state = now(), max(PARAMS.chunk_s, seconds), 200, self._state
        fast, moved = is_kept((anneal_loads,)) or seconds > 10, np.zeros((PARAMS.stretch, 2), np.int64)
        scale = float(max(1, state.busy.max()))
        falls = math.log(PARAMS.last_temperature / PARAMS.first_temperature)
        while (spent := (now() - began) / seconds) < 1 and not is_over():
            ask_time()
            seed, asked = seed + 1, now()
            temperature = PARAMS.first_temperature * math.exp(falls * spent)
            self.least = run(
                anneal_loads, fast, self._tables, state, self.best, moved, self.least, moves, scale, temperature,
                seed % 2**31,
            )  # fmt: skip
            count_work(PARAMS.move_s * moves)
            in_time = int(moves * PARAMS.chunk_s / max(1e-6, now() - asked))
            moves = max(200, min(4 * moves, in_time))


def block_orders(problem: Problem, instance: Instance, tables: LoadTables) -> Iterator[list[list[int]]]:
    """Orders of all blocks in units: topological; then with backward blocks at the first position of their neighbours.

    Sweeps bring them there. A device that runs a layer forward had better run it backward.
    """
    units = units_in_order(instance, PARAMS.most_units)
    yield units
    near: list[set[int]] = [set() for _ in tables.size]
    for request, source in enumerate(tables.source.tolist()):
        for reader in tables.reader[tables.first_reader[request] : tables.first_reader[request + 1]].tolist():
            near[source].add(reader)
            near[reader].add(source)
    # Positions beyond the graph's ops are the barrier's.
    phases = [op.phase for op in problem.graph.ops] + [None]
    later = [all(phases[op] in ("backward", "optimizer") for op in ops) for ops in instance.members]
    moving = [block for block in reversed(tables.order.tolist()) if later[block] and near[block]]
    if moving:
        yield _with_neighbours(units, moving, near)


def _with_neighbours(units: list[list[int]], moving: Sequence[int], near: Sequence[set[int]]) -> list[list[int]]:
    position = np.zeros(len(near))
    for number, unit in enumerate(units):
        position[unit] = number
    for sweep in range(PARAMS.sweeps):
        for block in moving if sweep % 2 else reversed(moving):
            position[block] = min(position[other] for other in near[block])
    blocks = np.argsort(position, kind="stable").tolist()
    size = -(-len(blocks) // PARAMS.most_units)
    return [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]


def contiguous_loads(instance: Instance, tables: LoadTables, units: Sequence[list[int]]) -> list[int] | None:
    """[block] → device: the cut of the units into a run per device whose largest device load is least.

    Exact over all sequences of devices, of which equal ones count as one, up to `PARAMS.most_states` sets of devices;
    beyond, in the order of the devices. None if no cut keeps to memory.
    """
    kinds = _kinds(instance, tables)
    if math.prod(len(kind) + 1 for kind in kinds) > PARAMS.most_states:
        kinds = [[device] for kind in kinds for device in kind]
        states = [(1,) * used + (0,) * (len(kinds) - used) for used in range(len(kinds) + 1)]
    else:
        states = list(product(*(range(len(kind) + 1) for kind in kinds)))
    costs = list(_run_costs(instance, tables, units, [kind[0] for kind in kinds]))
    count = len(units)
    nothing = np.full(count + 1, np.inf)
    nothing[0] = 0.0
    reached, came = {states[0]: nothing}, dict[tuple[int, ...], tuple[Ints, Ints]]()
    for state in states[1:]:
        ask_time()
        best, begun, last = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        for number, cost in enumerate(costs):
            before = (*state[:number], state[number] - 1, *state[number + 1 :])
            if before in reached:
                table = np.maximum(cost, reached[before][:, None])
                begin = table.argmin(axis=0)
                found = table[begin, np.arange(count + 1)]
                better = found < best
                best[better], begun[better], last[better] = found[better], begin[better], number
        reached[state], came[state] = best, (begun, last)
    state, end = states[-1], count
    if not np.isfinite(reached[state][count]):
        return None
    place = [0] * len(tables.size)
    while state in came:
        begin, number = int(came[state][0][end]), int(came[state][1][end])
        for unit in units[begin:end]:
            for block in unit:
                place[block] = kinds[number][state[number] - 1]
        state, end = (*state[:number], state[number] - 1, *state[number + 1 :]), begin
    return place


def _kinds(instance: Instance, tables: LoadTables) -> list[list[int]]:
    """The devices, those with equal work, memory and prices together."""
    found: dict[object, list[int]] = {}
    for device, capacity in enumerate(instance.capacity):
        others = [other for other in range(instance.device_count) if other != device]
        prices = (table[:, others, device] for table in (tables.sent, tables.received))
        key = capacity, *(table.tobytes() for table in (tables.work[:, device], tables.allowed[:, device], *prices))
        found.setdefault(key, []).append(device)
    return list(found.values())


def _run_costs(
    instance: Instance, tables: LoadTables, units: Sequence[list[int]], devices: Sequence[int]
) -> Iterator[Floats]:
    """For each device, [begin, end] → ticks of a run of units, infinite where it does not fit or may not run."""
    count, home = len(units), np.zeros(len(tables.size), np.int64)
    for number, unit in enumerate(units):
        home[unit] = number
    size = np.cumsum([0, *(int(tables.size[unit].sum()) for unit in units)])
    for device in devices:
        work = np.cumsum([0.0, *(float(tables.work[unit, device].sum()) for unit in units)])
        banned = np.cumsum([0, *(int(not tables.allowed[unit, device].all()) for unit in units)])
        cost = _crossing_costs(tables, home, count, device) + work[None, :] - work[:, None]
        cost[banned[None, :] > banned[:, None]] = np.inf
        room = instance.capacity[device]
        if room is not None:
            cost[(size[None, :] - size[:, None]) > room] = np.inf
        cost[np.tril_indices(count + 1, -1)] = np.inf
        np.fill_diagonal(cost, 0.0)
        yield cost


def _crossing_costs(tables: LoadTables, home: Ints, count: int, device: int) -> Floats:
    """[begin, end] → ticks that a device pays at most for what enters and leaves a run of units.

    Each request adds to rectangles of (begin, end), which two sums over a table of differences fill.
    """
    steps = np.zeros((count + 2, count + 2))
    both = tables.sent[:, device], tables.received[:, :, device]
    sending, receiving = (np.where(table >= APART, 0, table).max(axis=1) for table in both)

    def add(first: int, last: int, end: int, ticks: float) -> None:
        """For runs that begin from `first` to `last` and end behind `end`."""
        if first <= last:
            steps[first, end + 1] += ticks
            steps[last + 1, end + 1] -= ticks

    for request, block in enumerate(tables.source):
        source, kind = int(home[block]), tables.kind[request]
        sent, received = float(sending[kind]), float(receiving[kind])
        readers = sorted(set(home[tables.reader[slice(*tables.first_reader[request : request + 2])]].tolist()))
        add(0, source, source, sent)
        add(0, min(source, readers[0]), max(source, readers[-1]), -sent)
        before = -1
        for reader in readers:
            add(before + 1, reader, reader, received)
            add(before + 1, min(reader, source), max(reader, source), -received)
            before = reader
    return steps.cumsum(axis=0).cumsum(axis=1)[: count + 1, : count + 1]
