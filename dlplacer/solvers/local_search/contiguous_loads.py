"""Contiguous runs whose largest load is least, by dynamic programming over cuts (Tarnawski et al. 2020)."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.loads import APART, Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.decode.arrays import Ints
from dlplacer.solvers.heuristics.contiguous import units_in_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time
from dlplacer.solvers.local_search.placement_annealing import PlacementTables, build_placement_tables

Floats = NDArray[np.float64]

_MOST_UNITS, _SWEEPS, _MOST_STATES = 2000, 20, 64
"""Units of blocks and sets of devices at most, and sweeps over backward blocks."""


def load_tables(problem: Problem, instance: Instance, loads: Loads) -> PlacementTables:
    """The loads of devices and link directions under all placements."""
    devices = instance.device_count
    kinds = range(len(problem.sizes_bytes))
    pairs = [(kind, a, b) for kind in kinds for a in range(devices) for b in range(devices)]
    paid = np.array([loads.paid(*pair) for pair in pairs], np.int64).reshape(len(kinds), devices, devices, 2)
    requests = []
    for request in loads.requests:
        source = instance.block[request.source]
        readers = sorted({instance.block[reader] for reader in request.readers} - {source})
        if readers:
            requests.append((source, readers, request.size))
    on_links = (() if a == b else loads.on_links(kind, a, b) for kind, a, b in pairs)
    return build_placement_tables(
        instance,
        list(dict.fromkeys(instance.block[op] for op in instance.order)),
        range(devices),
        requests,
        paid,
        [[(devices + number, ticks) for number, ticks in row] for row in on_links],
    )


def block_orders(problem: Problem, instance: Instance, tables: PlacementTables) -> Iterator[list[list[int]]]:
    """Orders of all blocks in units: topological; then with backward blocks at the first position of their neighbours.

    Sweeps bring them there. A device that runs a layer forward had better run it backward.
    """
    units = units_in_order(instance, _MOST_UNITS)
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
    for sweep in range(_SWEEPS):
        for block in moving if sweep % 2 else reversed(moving):
            position[block] = min(position[other] for other in near[block])
    blocks = np.argsort(position, kind="stable").tolist()
    size = -(-len(blocks) // _MOST_UNITS)
    return [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]


def contiguous_loads(instance: Instance, tables: PlacementTables, units: Sequence[list[int]]) -> list[int] | None:
    """[block] → device: the cut of the units into a run per device whose largest device load is least.

    Exact over all sequences of devices, of which equal ones count as one, up to `_MOST_STATES` sets of devices;
    beyond, in the order of the devices. None if no cut keeps to memory.
    """
    kinds = _kinds(instance, tables)
    if math.prod(len(kind) + 1 for kind in kinds) > _MOST_STATES:
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


def _kinds(instance: Instance, tables: PlacementTables) -> list[list[int]]:
    """The devices, those with equal work, memory and prices together."""
    found: dict[object, list[int]] = {}
    for device, capacity in enumerate(instance.capacity):
        others = [other for other in range(instance.device_count) if other != device]
        prices = (table[:, others, device] for table in (tables.sent, tables.received))
        key = capacity, *(table.tobytes() for table in (tables.work[:, device], tables.allowed[:, device], *prices))
        found.setdefault(key, []).append(device)
    return list(found.values())


def _run_costs(
    instance: Instance, tables: PlacementTables, units: Sequence[list[int]], devices: Sequence[int]
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


def _crossing_costs(tables: PlacementTables, home: Ints, count: int, device: int) -> Floats:
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
