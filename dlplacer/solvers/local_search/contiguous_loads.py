"""Contiguous runs of blocks whose largest load is least."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dlplacer.problem.loads import APART, Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.decode.arrays import Ints
from dlplacer.solvers.heuristics.contiguous import Floats, alike_devices, best_runs, set_count, units_in_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.local_search.placement_annealing import PlacementTables, build_placement_tables

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

    Exact over all sequences of devices up to `_MOST_STATES` sets of devices; beyond, in the order of the devices. None
    if no cut keeps to memory.
    """
    rooms = [math.inf if room is None else float(room) for room in instance.capacity]
    time = np.where(tables.allowed, tables.work, -1).astype(float)
    groups = alike_devices(rooms, time, np.concatenate([tables.sent, tables.received]))
    in_order = set_count(groups) > _MOST_STATES
    groups = [[device] for device in range(len(rooms))] if in_order else groups
    costs = list(_run_costs(instance, tables, units, [group[0] for group in groups]))
    runs = best_runs(groups, costs, join=np.maximum, in_order=in_order)
    if runs is None:
        return None
    place = [0] * len(tables.size)
    for device, first, last in runs:
        for block in (block for unit in units[first:last] for block in unit):
            place[block] = device
    return place


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
        cost[np.tril_indices(count + 1)] = np.inf
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
