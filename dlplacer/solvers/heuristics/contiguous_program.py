"""The contiguous program: units in a row, cut into one run per device (Tarnawski et al. 2020, section 5).

A state is the devices that are used, the last of them, and the units placed. Of two ways to a state the better one
stays better, whatever follows, so the program is exact. Of devices that nothing tells apart only the number counts.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.instance.time_limit import ask_time

Floats = NDArray[np.float64]
State = tuple[tuple[int, ...], int]
"""Devices of each class that are used, and the class of the last one."""


def runs_within(time: Floats, held: Floats, capacity: float) -> Floats:
    """[first unit][unit behind the last] → time of a run on a device; infinite if it does not fit or may not run there.

    Parameters
    ----------
    time
        [unit] → time there, infinite where it may not run.
    held
        [first unit][unit behind the last] → bytes.
    """
    allowed = np.isfinite(time)
    spent = np.concatenate([[0.0], np.cumsum(np.where(allowed, time, 0.0))])
    barred = np.concatenate([[0], np.cumsum(~allowed)])
    fits = (held <= capacity) & (barred[None, :] == barred[:, None])
    return np.where(np.triu(fits, 1), spent[None, :] - spent[:, None], np.inf)


def alike_devices(capacity: Sequence[float], time: Floats, crossing: Floats) -> list[list[int]]:
    """Devices that nothing tells apart, together: equal in memory, times, and costs to and from all others.

    Parameters
    ----------
    time, crossing
        [unit][device] and [any][device][device].
    """

    def alike(one: int, other: int) -> bool:
        swap = np.arange(len(capacity))
        swap[[one, other]] = other, one
        return bool(
            capacity[one] == capacity[other]
            and np.array_equal(time[:, one], time[:, other])
            and np.array_equal(crossing, crossing[:, swap][:, :, swap])
        )

    groups: list[list[int]] = []
    for device in range(len(capacity)):
        home = next((group for group in groups if alike(group[0], device)), None)
        groups.append([device]) if home is None else home.append(device)
    return groups


def set_count(groups: Sequence[Sequence[int]]) -> int:
    """Sets of devices that the program tells apart: 256 of eight unlike devices, 17 of sixteen alike."""
    return math.prod(len(group) + 1 for group in groups)


def best_runs(
    groups: Sequence[Sequence[int]],
    runs: Sequence[Floats],
    crossing: Floats | None = None,
    join: Any = np.add,
    in_order: bool = False,
) -> list[tuple[int, int, int]] | None:
    """(device, first unit, unit behind the last) of the best runs, in order; None if nothing fits.

    Parameters
    ----------
    groups
        Devices that nothing tells apart, together.
    runs
        [group] → [first unit][unit behind the last] → cost, infinite where that may not be.
    crossing
        [cut][device][device] → cost of passing on from one run to the next; None for none.
    join
        ``np.add`` for the least sum of all costs, ``np.maximum`` for the least of the largest.
    in_order
        Whether devices are used in the order of the groups only.
    """
    count = len(runs[0])
    begin = np.full(count, np.inf)
    begin[0] = 0.0
    best: dict[State, Floats] = {}
    came: dict[State, tuple[Any, list[State | None], Any]] = {}
    for state, before in _states([len(group) for group in groups], in_order):
        ask_time()
        ways = [way for way in before if way is None or way in best]
        last = state[1]
        table = np.stack(
            [begin if way is None else _passed(best[way], groups, crossing, join, way[1], last) for way in ways]
        )
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


def _passed(
    cost: Floats, groups: Sequence[Sequence[int]], crossing: Floats | None, join: Any, last: int, following: int
) -> Floats:
    """Costs at every cut after passing on from a device of one group to another device."""
    if crossing is None:
        return cost
    one, other = groups[last][0], groups[following][last == following]
    return np.asarray(join(cost, crossing[:, one, other]))


def _states(counts: Sequence[int], in_order: bool) -> Iterator[tuple[State, list[State | None]]]:
    """States, and the states before each; None where a split may begin."""
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
