"""Contiguous placement: the blocks, in the program's order, cut into one run per device, by dynamic programming.

For a chain whose time is the sum of its ops and transfers the result is the best contiguous placement; where layers are
equal and routes obey the triangle inequality no placement is better (exchange argument). Elsewhere it is a placement
that keeps to memory, whose ops a list schedule then orders.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ContiguousParams:
    """Limits of the dynamic program.

    Attributes
    ----------
    most_devices
        It looks at every set of devices, 2^D of them; above this many, at the fastest ones.
    most_units
        Blocks beyond this number are merged pairwise in order first, since a state is kept for every cut.
    """

    most_devices: int = 8
    most_units: int = 4000


def contiguous(
    instance: Instance,
    priority: Sequence[int],
    fixed: Sequence[int] | None = None,
    parameters: ContiguousParams | None = None,
) -> Schedule | None:
    """The list schedule of the best contiguous placement, or None if none keeps to memory.

    Parameters
    ----------
    priority
        [op] → place in the order of preference, as for `list_schedule`.
    fixed
        [block] → device, or -1 where the rule shall decide.
    """
    placement = place_contiguously(instance, fixed, parameters or ContiguousParams())
    return None if placement is None else list_schedule(instance, priority, placement)


def place_contiguously(
    instance: Instance, fixed: Sequence[int] | None, parameters: ContiguousParams
) -> list[int] | None:
    """[block] → device: the contiguous placement of least summed time and delay; None if none keeps to memory."""
    units = _units(instance, parameters.most_units)
    time, size = _costs(instance, units, fixed)
    devices = _candidates(time, parameters.most_devices)
    crossing = _crossings(instance, units, devices)
    runs = _best_runs(time[:, devices], size, [instance.capacity[device] for device in devices], crossing)
    if runs is None:
        return None
    placement = [-1] * len(instance.members)
    for device, first, last in runs:
        for unit in units[first:last]:
            for block in unit:
                placement[block] = devices[device]
    return placement


def _units(instance: Instance, most: int) -> list[list[int]]:
    """Blocks in the order of their first working op; blocks of sources alone stand before the first that reads them."""
    place = {op: position for position, op in enumerate(instance.order)}
    position: list[tuple[int, bool, int]] = []
    for block, ops in enumerate(instance.members):
        working = [place[op] for op in ops if op not in instance.sources]
        reading = [place[end] for op in ops for end, _ in instance.successors[op]]
        position.append((min(working or reading, default=0), bool(working), block))
    units = [[block] for *_, block in sorted(position)]
    while len(units) > most:
        units = [
            [block for unit in units[position : position + 2] for block in unit] for position in range(0, len(units), 2)
        ]
    return units


def _costs(instance: Instance, units: list[list[int]], fixed: Sequence[int] | None) -> tuple[Floats, list[int]]:
    """[unit][device] → ticks, infinite where one of its blocks may not run, and [unit] → bytes."""
    time = np.zeros((len(units), instance.device_count))
    for number, unit in enumerate(units):
        for block in unit:
            devices = set(instance.allowed[instance.members[block][0]])
            if fixed is not None and fixed[block] >= 0:
                devices &= {fixed[block]}
            for device in range(instance.device_count):
                if device not in devices:
                    time[number, device] = np.inf
                else:
                    time[number, device] += sum(instance.duration[op][device] for op in instance.members[block])
    return time, [sum(instance.footprint[block] for block in unit) for unit in units]


def _candidates(time: Floats, most: int) -> list[int]:
    total = np.where(np.isfinite(time), time, 0).sum(axis=0)
    return sorted(np.argsort(total, kind="stable")[:most].tolist()) if len(total) > most else list(range(len(total)))


def _crossings(instance: Instance, units: list[list[int]], devices: list[int]) -> Floats:
    """[cut][from][to] → ticks of what crosses it if the two sides are on these devices, each op's output once."""
    home = {block: number for number, unit in enumerate(units) for block in unit}
    steps = np.zeros((len(units) + 2, len(devices), len(devices)))
    for op, arcs in enumerate(instance.successors):
        mine = home[instance.block[op]]
        reach: dict[int, tuple[tuple[int, ...], ...]] = {}
        for end, delay in arcs:
            reach.setdefault(home[instance.block[end]], delay)
        low, high = min([mine, *reach]), max([mine, *reach])
        if low < high and op not in instance.sources:
            table = np.array(next(iter(reach.values())), dtype=float)[np.ix_(devices, devices)]
            steps[low + 1] += table
            steps[high + 1] -= table
    return np.minimum(np.cumsum(steps, axis=0), float(FAR))


def _best_runs(
    time: Floats, size: list[int], capacity: list[int | None], crossing: Floats
) -> list[tuple[int, int, int]] | None:
    """(device, first unit, last unit + 1) of each run in order; None if no such cut keeps to memory.

    State: (set of devices used, the last of them, number of units placed) → least ticks. For a device that comes next,
    the window of cuts from which its memory reaches a given unit only moves on, so that a monotone queue finds the best
    cut in linear time.
    """
    count, devices = time.shape
    total = list(accumulate(size, initial=0))
    ahead = np.vstack([np.zeros(devices), np.cumsum(np.where(np.isfinite(time), time, 0), axis=0)])
    barred = np.vstack([np.zeros(devices, dtype=int), np.cumsum(~np.isfinite(time), axis=0)])
    best: dict[tuple[int, int], Floats] = {}
    came: dict[tuple[int, int], list[tuple[int, int]]] = {}
    start = np.full(count + 1, np.inf)
    start[0] = 0.0
    best[0, -1] = start
    for used in range(1 << devices):
        for device in range(devices):
            if used >> device & 1:
                continue
            entry, last_of = _entries(best, used, device, crossing, devices)
            if entry is None:
                continue
            value, origin = _window(entry - ahead[:, device], total, barred[:, device], capacity[device])
            key = used | 1 << device, device
            best[key] = value + ahead[:, device]
            came[key] = [(cut, int(last_of[cut]) if cut >= 0 else -1) for cut in origin]
    ends = {key: values[count] for key, values in best.items() if key[0] and np.isfinite(values[count])}
    if not ends:
        return None
    (used, device), unit = min(ends, key=lambda key: (ends[key], key)), count
    runs = []
    while unit > 0:
        cut, before = came[used, device][unit]
        if cut < unit:
            runs.append((device, cut, unit))
        used, device, unit = used & ~(1 << device), before, cut
    return runs[::-1]


def _entries(
    best: dict[tuple[int, int], Floats], used: int, device: int, crossing: Floats, devices: int
) -> tuple[Floats | None, NDArray[np.int64]]:
    """[cut] → least ticks with which a device can take over there, and the device before it."""
    if not used:
        return best[0, -1], np.full(len(best[0, -1]), -1)
    rows = [(last, best[used, last]) for last in range(devices) if (used, last) in best]
    if not rows:
        return None, np.zeros(0, dtype=np.int64)
    cuts = len(rows[0][1])
    table = np.array([row + crossing[:cuts, last, device] for last, row in rows])
    return table.min(axis=0), np.array([last for last, _ in rows])[table.argmin(axis=0)]


def _window(
    entry: Floats, total: list[int], barred: NDArray[np.int64], capacity: int | None
) -> tuple[Floats, list[int]]:
    """[unit] → least entry over the cuts from which the device holds all units up to it, and that cut; -1 for none."""
    value, origin = np.full(len(entry), np.inf), [-1] * len(entry)
    queue: deque[int] = deque()
    for unit in range(len(entry)):
        while queue and entry[queue[-1]] >= entry[unit]:
            queue.pop()
        queue.append(unit)
        while queue and (
            (capacity is not None and total[unit] - total[queue[0]] > capacity) or barred[unit] > barred[queue[0]]
        ):
            queue.popleft()
        if queue and np.isfinite(entry[queue[0]]):
            value[unit], origin[unit] = entry[queue[0]], queue[0]
    return value, origin
