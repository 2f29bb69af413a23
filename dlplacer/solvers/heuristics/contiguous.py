"""Contiguous placement: the blocks in topological order, cut into one run per device.

For a short chain on few devices, the result is the contiguous placement of least time: the sum of ops and transfers.
For other graphs the result is a placement that fits in memory, and a list schedule orders its ops.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

Floats = NDArray[np.float64]
State = tuple[tuple[int, ...], int]
"""Number of used devices of each group, and the group of the device used last."""


def runs_within(time: Floats, held: Floats, capacity: float) -> Floats:
    """[first unit][unit after the last] → time of a run on a device; infinite if it does not fit or may not run there.

    `time` is [unit] → time on the device, infinite if not allowed; `held` is [first unit][unit after the last] → bytes.
    """
    allowed = np.isfinite(time)
    spent = np.concatenate([[0.0], np.cumsum(np.where(allowed, time, 0.0))])
    barred = np.concatenate([[0], np.cumsum(~allowed)])
    fits = (held <= capacity) & (barred[None, :] == barred[:, None])
    return np.where(np.triu(fits, 1), spent[None, :] - spent[:, None], np.inf)


def alike_devices(capacity: Sequence[float], time: Floats, crossing: Floats) -> list[list[int]]:
    """Groups of devices with equal `capacity`, `time` ([unit][device]) and `crossing` costs ([any][device][device])."""

    def alike(one: int, other: int) -> bool:
        swap = np.arange(len(capacity))
        swap[[one, other]] = other, one
        same = capacity[one] == capacity[other] and np.array_equal(time[:, one], time[:, other])
        return bool(same and np.array_equal(crossing, crossing[:, swap][:, :, swap]))

    groups: list[list[int]] = []
    for device in range(len(capacity)):
        home = next((group for group in groups if alike(group[0], device)), None)
        groups.append([device]) if home is None else home.append(device)
    return groups


def set_count(groups: Sequence[Sequence[int]]) -> int:
    """Number of device sets that the dynamic program distinguishes: 256 for 8 distinct devices, 17 for 16 equal."""
    return math.prod(len(group) + 1 for group in groups)


def best_runs(
    groups: Sequence[Sequence[int]],
    runs: Sequence[Floats],
    crossing: Floats | None = None,
    join: Any = np.add,
    in_order: bool = False,
) -> list[tuple[int, int, int]] | None:
    """(device, first unit, unit after the last) of the best runs, in order; None if nothing fits.

    Parameters
    ----------
    groups
        Groups of interchangeable devices; with `in_order` the runs use them in this order.
    runs
        [group] → [first unit][unit after the last] → cost, infinite if not allowed.
    crossing
        [cut][device][device] → cost of passing from one run to the next; None if passing costs nothing.
    join
        ``np.add`` to minimise the sum of all costs, ``np.maximum`` to minimise the largest.
    """
    count = len(runs[0])
    begin = np.full(count, np.inf)
    begin[0] = 0.0
    best: dict[State, Floats] = {}

    def passed(way: State, following: int) -> Floats:
        """Costs at every cut after passing from a device of one group to another device."""
        if crossing is None:
            return best[way]
        one, other = groups[way[1]][0], groups[following][way[1] == following]
        return np.asarray(join(best[way], crossing[:, one, other]))

    came: dict[State, tuple[Any, list[State | None], Any]] = {}
    for state, before in _states([len(group) for group in groups], in_order):
        ask_time()
        ways = [way for way in before if way is None or way in best]
        last = state[1]
        table = np.stack([begin if way is None else passed(way, last) for way in ways])
        whole = join(table.min(axis=0)[:, None], runs[last])
        cut = whole.argmin(axis=0)
        best[state] = whole[cut, np.arange(count)]
        came[state] = cut, ways, table.argmin(axis=0)
    found: State | None = min(best, key=lambda state: best[state][-1])
    if found is None or not np.isfinite(best[found][-1]):
        return None
    chosen, end = [], count - 1
    while found is not None:
        used, last = found
        cut, ways, origin = came[found]
        start = int(cut[end])
        chosen.append((groups[last][used[last] - 1], start, end))
        found, end = ways[int(origin[start])], start
    return chosen[::-1]


def _states(counts: Sequence[int], in_order: bool) -> Iterator[tuple[State, list[State | None]]]:
    """Each state, with the states that may precede it; None among them if it may be the first."""
    if in_order:
        for last in range(len(counts)):
            alone = [(tuple(int(each == number) for each in range(len(counts))), number) for number in range(last + 1)]
            yield alone[-1], [None, *alone[:-1]]
        return
    for used in np.ndindex(*(count + 1 for count in counts)):
        for last in range(len(counts)):
            if used[last]:
                before = (*used[:last], used[last] - 1, *used[last + 1 :])
                ways: list[State | None] = [(before, each) for each in range(len(counts)) if before[each]]
                yield (used, last), ways if any(before) else [None]


_MOST_DEVICES, _MOST_UNITS = 8, 200
"""Most devices, because the dynamic program visits all 2^D sets of D devices; most units of blocks, because its time
grows with their square. `_candidates` chooses devices, and `units_in_order` merges blocks."""


def contiguous(instance: Instance, priority: Sequence[int], fixed: Sequence[int] | None = None) -> Schedule | None:
    """The list schedule of the contiguous placement of least total time and delay; None if none fits in memory."""
    units = units_in_order(instance, _MOST_UNITS)
    time, size = _costs(instance, units, fixed)
    devices = _candidates(time, _MOST_DEVICES)
    crossing, time = _crossings(instance, units, devices), time[:, devices]
    rooms = [np.inf if (room := instance.capacity[device]) is None else room for device in devices]
    groups = alike_devices(rooms, time, crossing)
    ahead = np.concatenate([[0.0], np.cumsum(size)])
    held = ahead[None, :] - ahead[:, None]
    runs = best_runs(groups, [runs_within(time[:, each[0]], held, rooms[each[0]]) for each in groups], crossing)
    if runs is None:
        return None
    placement = [-1] * len(instance.members)
    for device, first, last in runs:
        for block in chain(*units[first:last]):
            placement[block] = devices[device]
    return list_schedule(instance, priority, placement)


def units_in_order(instance: Instance, most: int) -> list[list[int]]:
    """Up to `most` units of blocks, ordered by first working op; blocks of sources precede their first reader."""
    place = {op: position for position, op in enumerate(instance.order)}
    position: list[tuple[int, bool, int]] = []
    for block, ops in enumerate(instance.members):
        working = [place[op] for op in ops if op not in instance.sources]
        reading = [place[end] for op in ops for end, _ in instance.successors[op]]
        position.append((min(working or reading, default=0), bool(working), block))
    units = [[block] for *_, block in sorted(position)]
    while len(units) > most:
        units = [list(chain(*units[place : place + 2])) for place in range(0, len(units), 2)]
    return units


def _costs(instance: Instance, units: list[list[int]], fixed: Sequence[int] | None) -> tuple[Floats, list[int]]:
    """[unit][device] → ticks, infinite if a block of the unit is not allowed there; and [unit] → bytes."""
    time = np.zeros((len(units), instance.device_count))
    for number, unit in enumerate(units):
        ask_time()
        for block in unit:
            devices = set(instance.allowed[instance.members[block][0]])
            if fixed is not None and fixed[block] >= 0:
                devices &= {fixed[block]}
            for device in range(instance.device_count):
                here = sum(instance.duration[op][device] for op in instance.members[block])
                time[number, device] += here if device in devices else np.inf
    return time, [sum(instance.footprint[block] for block in unit) for unit in units]


def _candidates(time: Floats, most: int) -> list[int]:
    """Up to `most` devices: those that some unit requires, then those that may run most units, then the fastest."""
    may_run = np.isfinite(time)
    if time.shape[1] <= most:
        return list(range(time.shape[1]))
    needed = may_run[may_run.sum(axis=1) == 1].any(axis=0)
    total = np.where(may_run, time, 0).sum(axis=0)
    return sorted(np.lexsort((total, -may_run.sum(axis=0), ~needed))[:most].tolist())


def _crossings(instance: Instance, units: list[list[int]], devices: list[int]) -> Floats:
    """[cut][from][to] → ticks of the transfers across a cut between these devices; each op's output counts once."""
    home = {block: number for number, unit in enumerate(units) for block in unit}
    steps = np.zeros((len(units) + 2, len(devices), len(devices)))
    for op, arcs in enumerate(instance.successors):
        ask_time()
        mine = home[instance.block[op]]
        reach: dict[int, tuple[tuple[int, ...], ...]] = {}
        for end, delay in arcs:
            reach.setdefault(home[instance.block[end]], delay)
        low, high = min([mine, *reach]), max([mine, *reach])
        if low < high and op not in instance.sources:
            table = np.array(next(iter(reach.values())), dtype=float)[np.ix_(devices, devices)]
            steps[low + 1] += table
            steps[high + 1] -= table
    return np.minimum(np.cumsum(steps, axis=0)[: len(units) + 1], float(FAR))
