"""Contiguous splits of a chain of ops over devices: what one costs, and the best one by dynamic programming."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.machines.costs.roofline_times import required_time_s

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
State = tuple[tuple[int, ...], int]
"""Devices of each class that are used, none in the devices' own order, and the class of the last one."""

_MOST_STATES = 20_000
"""Sets of devices that the program keeps; eight different ones make 256, sixteen alike 17."""

_MOST_CASES = 40_000
"""Numbers of equal ops x sets of devices, such as 4 x 81 x 32: three seconds of work."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Ops in a row, the devices, and what each costs on each.

    Attributes
    ----------
    time_s
        [op][device] → seconds; infinite where the op may not run.
    sizes
        [op] → bytes that it keeps.
    capacities
        [device] → bytes; infinite for unlimited memory.
    crossing_s
        [cut][from][to] → seconds of the tensor between op ``cut − 1`` and op ``cut``.
    """

    ops: tuple[Op, ...]
    devices: tuple[Device, ...]
    time_s: Floats
    sizes: Floats
    capacities: Floats
    crossing_s: Floats

    def loads_s(self, placement: Sequence[int]) -> tuple[Floats, Floats]:
        """[device] → seconds of its ops, and [cut] → seconds of each crossing."""
        busy = np.zeros(len(self.devices))
        np.add.at(busy, list(placement), self.time_s[np.arange(len(placement)), list(placement)])
        cuts = range(1, len(placement))
        return busy, np.array([self.crossing_s[cut, placement[cut - 1], placement[cut]] for cut in cuts])

    def held_bytes(self, placement: Sequence[int]) -> Floats:
        """[device] → bytes of its ops."""
        held = np.zeros(len(self.devices))
        np.add.at(held, list(placement), self.sizes)
        return held

    def fits(self, placement: Sequence[int]) -> bool:
        """True if every device may run its ops and has room for them."""
        allowed = np.isfinite(self.time_s[np.arange(len(placement)), list(placement)]).all()
        return bool(allowed and (self.held_bytes(placement) <= self.capacities).all())

    def value_s(self, placement: Sequence[int], largest: bool = False) -> float:
        """Seconds of all ops and crossings one after another; with `largest`, of the largest load among them."""
        busy, crossings = self.loads_s(placement)
        if largest:
            return float(max(busy.max(), crossings.max(initial=0.0)))
        return float(busy.sum() + crossings.sum())

    @cached_property
    def classes(self) -> list[list[int]]:
        """Devices that nothing tells apart, together: equal in memory, times, and costs to and from all others."""
        groups: list[list[int]] = []
        for device in range(len(self.devices)):
            home = next((group for group in groups if self._alike(group[0], device)), None)
            groups.append([device]) if home is None else home.append(device)
        return groups

    def _alike(self, one: int, other: int) -> bool:
        swap = np.arange(len(self.devices))
        swap[[one, other]] = other, one
        return bool(
            self.capacities[one] == self.capacities[other]
            and np.array_equal(self.time_s[:, one], self.time_s[:, other])
            and np.array_equal(self.crossing_s, self.crossing_s[:, swap][:, :, swap])
        )

    def best_split(self, largest: bool = False, ordered: bool = False) -> list[int] | None:
        """[op] → device: the best split with one run of ops per device; None if none fits.

        A state is the devices that are used, the last of them, and the ops placed, so the program is exact: of two ways
        to a state the better one stays better, whatever follows. Of devices that nothing tells apart only the number
        counts; in the devices' own order the last one says all.

        Parameters
        ----------
        largest
            Minimize the largest load, not the sum of all.
        ordered
            Devices come in their own order; some may be left out.
        """
        groups = [[device] for device in range(len(self.devices))] if ordered else self.classes
        states = _in_order(len(groups)) if ordered else _in_any_order([len(group) for group in groups])
        join = np.maximum if largest else np.add
        runs = [self._runs_s(group[0]) for group in groups]
        crossing = self._crossings(groups)
        begin = np.full(len(self.ops) + 1, np.inf)
        begin[0] = 0.0
        best: dict[State, Floats] = {}
        came: dict[State, tuple[Whole, list[State | None], Whole]] = {}
        for state, before, may_begin in states:
            ways: list[State | None] = [None] * may_begin + [each for each in before if each in best]
            last = state[1]
            table = np.stack([begin if way is None else join(best[way], crossing[:, way[1], last]) for way in ways])
            whole = join(table.min(axis=0)[:, None], runs[last])
            cut = whole.argmin(axis=0)
            best[state] = whole[cut, np.arange(len(begin))]
            came[state] = cut, ways, table.argmin(axis=0)
        found: State | None = min(best, key=lambda state: best[state][-1])
        if found is None or not np.isfinite(best[found][-1]):
            return None
        placement, end = [-1] * len(self.ops), len(self.ops)
        while found is not None:
            used, last = found
            cut, ways, origin = came[found]
            start = int(cut[end])
            placement[start:end] = [groups[last][used[last] - 1 if used else 0]] * (end - start)
            found, end = ways[int(origin[start])], start
        return placement

    def least_s(self) -> float:
        """A value that no placement is below, contiguous or not; 0 if there are too many cases to say.

        For each set of devices: the least sum of times over all numbers of equal ops on each of them for which there is
        room, and a minimum spanning tree of its cheapest crossings, as the chain goes through all devices of the set.
        Where it also returns to the device of its first op, it crosses once more.
        """
        kinds: dict[tuple[float, ...], int] = {}
        for row, size in zip(self.time_s.tolist(), self.sizes.tolist(), strict=True):
            kinds[(size, *row)] = kinds.get((size, *row), 0) + 1
        shape = tuple(count + 1 for count in kinds.values())
        sets = math.prod(len(group) + 1 for group in self.classes)
        if math.prod(shape) * sets > _MOST_CASES:
            return 0.0
        crossing = self.crossing_s[1:-1].min(axis=0, initial=np.inf)
        near = np.minimum(crossing, crossing.T)
        numbers = np.array(list(np.ndindex(*shape)))
        table = np.array(list(kinds))
        held = numbers @ table[:, 0]
        ends_there = self._holds_both_ends(list(kinds), numbers)
        between = near[~np.eye(len(near), dtype=bool)].min(initial=np.inf)
        begin = np.full(shape, np.inf)
        begin[tuple(numbers[0])] = 0.0
        found: list[tuple[Floats, list[int]]] = [(begin, [])]
        for group in self.classes:
            barred = ~np.isfinite(table[:, group[0] + 1])
            spent = numbers @ np.where(barred, 0.0, table[:, group[0] + 1])
            spent[ends_there] += between
            fits = (held <= self.capacities[group[0]]) & ~(numbers[:, barred] > 0).any(axis=1)
            ways = [(tuple(taken), cost) for taken, cost in zip(numbers[fits], spent[fits], strict=True)]
            ends = list(found)
            for device in group:
                ends = [(_with_device(best, ways), [*used, device]) for best, used in ends]
                found = [*found, *ends]
        return min(float(best.flat[-1]) + _spanning_tree(near, used) for best, used in found[1:])

    def _holds_both_ends(self, kinds: Sequence[tuple[float, ...]], numbers: Whole) -> NDArray[np.bool_]:
        """[numbers of ops of each kind] → True if the first and the last op are among them, but not all ops."""
        ends = [kinds.index((self.sizes[end], *self.time_s[end])) for end in (0, -1)]
        alone = all(numbers[-1, end] == 1 for end in ends) and len({*ends}) == 2
        taken = (numbers[:, ends] == 1).all(axis=1) & (numbers.sum(axis=1) < len(self.ops))
        return np.asarray(taken & alone)

    def _runs_s(self, device: int) -> Floats:
        """[first op][op behind the last] → seconds of a run on a device; infinite where it does not fit."""
        ahead = np.concatenate([[0.0], np.cumsum(self.sizes)])
        time = self.time_s[:, device]
        spent = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(time), time, 0.0))])
        barred = np.concatenate([[0], np.cumsum(~np.isfinite(time))])
        fits = (ahead[None, :] - ahead[:, None] <= self.capacities[device]) & (barred[None, :] == barred[:, None])
        later = np.arange(len(ahead))[None, :] > np.arange(len(ahead))[:, None]
        return np.where(fits & later, spent[None, :] - spent[:, None], np.inf)

    def _crossings(self, groups: Sequence[Sequence[int]]) -> Floats:
        """[cut][from class][to class] → seconds; within a class those between two of its devices."""
        first = [group[0] for group in groups]
        table = self.crossing_s[:, first][:, :, first].copy()
        for number, group in enumerate(groups):
            if len(group) > 1:
                table[:, number, number] = self.crossing_s[:, group[0], group[1]]
        return table


def _with_device(best: Floats, ways: Sequence[tuple[tuple[int, ...], float]]) -> Floats:
    """[ops of each kind placed] → least seconds with one device more, which takes some of them."""
    after = np.full(best.shape, np.inf)
    for taken, cost in ways:
        there = after[tuple(slice(count, None) for count in taken)]
        before = best[tuple(slice(None, end - count) for end, count in zip(best.shape, taken, strict=True))]
        np.minimum(there, before + cost, out=there)
    return after


def _spanning_tree(near: Floats, used: Sequence[int]) -> float:
    """The least sum of crossings that joins devices (Prim)."""
    joined, total = [used[0]], 0.0
    while len(joined) < len(used):
        rest = [device for device in used if device not in joined]
        reach = near[np.ix_(joined, rest)].min(axis=0)
        total += float(reach.min())
        joined.append(rest[int(reach.argmin())])
    return total


def _in_order(count: int) -> Iterator[tuple[State, list[State], bool]]:
    """States of a split in the devices' order, the states before each, and whether a split may begin there."""
    for last in range(count):
        yield ((), last), [((), before) for before in range(last)], True


def _in_any_order(counts: Sequence[int]) -> Iterator[tuple[State, list[State], bool]]:
    """As `_in_order`, of numbers of devices of each class."""
    if math.prod(count + 1 for count in counts) > _MOST_STATES:
        raise InputError(
            f"{sum(counts)} devices of {len(counts)} kinds are too many to try all their sets; leave out some"
        )
    for used in np.ndindex(*(count + 1 for count in counts)):
        for last in range(len(counts)):
            if used[last]:
                before = (*used[:last], used[last] - 1, *used[last + 1 :])
                yield (used, last), [(before, each) for each in range(len(counts)) if before[each]], not any(before)


def chain_of(graph: OpGraph, topology: Topology) -> Chain:
    """The chain that a graph of ops in a row is on a machine; its ops have times.

    Raises
    ------
    InputError
        If the ops do not stand in a row, or an op has no time.
    """
    order = [graph.op(name) for name in graph.topological_order]
    if [(edge.source, edge.target) for edge in graph.edges] != [(one.id, other.id) for one, other in pairwise(order)]:
        raise InputError(f"graph {graph.name!r} is no chain of layers; `dlplacer fit` makes one")
    wiring, devices = Wiring(topology), topology.devices
    time_s = np.full((len(order), len(devices)), np.inf)
    for number, op in enumerate(order):
        for place, device in enumerate(devices):
            if op.devices is None or device.id in op.devices or device.type in op.devices:
                time_s[number, place] = required_time_s(op, device.type)
    lines = [[wiring.channel(one.id, other.id) for other in devices] for one in devices]
    latency_s = np.array([[line.latency_s for line in row] for row in lines])
    s_per_byte = np.array([[line.s_per_byte for line in row] for row in lines])
    crossing_s = np.zeros((len(order) + 1, len(devices), len(devices)))
    for cut, edge in enumerate(graph.edges, start=1):
        crossing_s[cut] = latency_s + s_per_byte * edge.bytes
    rooms = [math.inf if device.memory_bytes is None else device.memory_bytes for device in devices]
    sizes = np.array([float(op.footprint_bytes) for op in order])
    return Chain(tuple(order), devices, time_s, sizes, np.array(rooms, dtype=float), crossing_s)
