"""An instance as the tables that kernels work on, with one view of transfers whether links are contended or not.

Compiled code passes every array by value, fields and all: few tables with named columns compile and run many times
faster than many vectors. Lists of different lengths are all in one vector; tables hold their limits in it.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.route_table import RouteTable
from dlplacer.solvers.instance.instance import FAR, Instance

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNLIMITED = 2**60
"""Stands for the memory of a device without limit."""

_MOST_WITH_DETOURS = 8
"""Devices up to which routes besides the quickest are listed: each pair takes a search of its own for them."""

IS_SOURCE, UNIT, WAITS, FREES, READS, WRITES = 0, 1, 2, 4, 6, 8
"""Columns of `InstanceArrays.ops`: whether an op starts at 0 wherever it is, its block, and the first of two limits of
lists: ops that it waits for without reading from them (the barrier's arcs), those that wait for it so, requests that it
reads, and requests that it is the source of."""

SOURCE, CLASS, READERS = 0, 1, 2
"""Columns of `InstanceArrays.requests`: producer, class of its size, and the first of two limits of its readers."""

BYTES, MEMBERS = 0, 1
"""Columns of `InstanceArrays.units`: footprint, and the first of two limits of its ops."""

FIRST_HOLD = 2
"""`InstanceArrays.segments`: ticks are column 0 + column 1 × bytes; from here two limits of its rows in
`InstanceArrays.holds`."""


class InstanceArrays(NamedTuple):
    """The ops to be placed and ordered.

    Attributes
    ----------
    ticks
        [op, device].
    ops, requests, units
        Tables with the columns above.
    lists
        What the limits in them point into.
    sizes
        [request] → bytes.
    allowed
        [unit, device] → 1 where all its ops may run.
    routes
        [class of sizes, source, target] → number of the quickest route, and how many routes there are from it on.
    segments_at
        [route] → its first route segment.
    segments
        Route segments.
    holds
        Link direction, and two lines over the bytes: from and to which tick after the segment's start it is held.
    capacity
        [device] → bytes.
    """

    ticks: Ints
    ops: Ints
    requests: Ints
    units: Ints
    lists: Ints
    sizes: Floats
    allowed: Ints
    routes: Ints
    segments_at: Ints
    segments: Floats
    holds: Floats
    capacity: Ints


_Request = tuple[int, int, int, Sequence[int]]
"""Source, class of sizes, bytes, and readers."""

_RouteTables = tuple[Ints, Ints, Floats, Floats]
"""The fields of `InstanceArrays` on routes."""


def tables_of(instance: Instance) -> InstanceArrays:
    """The tables of an instance, made once."""
    if "tables" not in instance.known:
        instance.known["tables"] = _build_tables(instance)
    return instance.known["tables"]  # type: ignore[no-any-return]


def _build_tables(instance: Instance) -> InstanceArrays:
    lists, count = list[int](), instance.op_count

    def add(values: Sequence[int]) -> tuple[int, int]:
        lists.extend(values)
        return len(lists) - len(values), len(lists)

    sent, routes = _without_links(instance) if instance.traffic is None else _over_links(instance)
    ops = np.zeros((count, WRITES + 2), np.int64)
    ops[list(instance.sources), IS_SOURCE] = 1
    ops[:, UNIT] = instance.block
    reads, writes, frees = ([list[int]() for _ in range(count)] for _ in range(3))
    for number, (source, _, _, readers) in enumerate(sent):
        writes[source].append(number)
        for reader in readers:
            reads[reader].append(number)
    for op, arcs in enumerate(instance.predecessors):
        read = {sent[number][0] for number in reads[op]}
        waits = [source for source, _ in arcs if source not in read]
        for source in waits:
            frees[source].append(op)
        ops[op, WAITS : WAITS + 2] = add(waits)
    for column, rows in ((READS, reads), (WRITES, writes), (FREES, frees)):
        for op, row in enumerate(rows):
            ops[op, column : column + 2] = add(row)
    requests = [(source, kind, *add(readers)) for source, kind, _, readers in sent]
    units = [(size, *add(members)) for size, members in zip(instance.footprint, instance.members, strict=True)]
    allowed = np.zeros((len(instance.members), instance.device_count), np.int64)
    for block, members in enumerate(instance.members):
        allowed[block, list(instance.allowed[members[0]])] = 1
    return InstanceArrays(
        np.array(instance.duration, np.int64).reshape(count, instance.device_count),
        ops,
        np.array(requests, np.int64).reshape(-1, READERS + 2),
        np.array(units, np.int64),
        np.array(lists, np.int64),
        np.array([size for _, _, size, _ in sent], np.float64),
        allowed,
        *routes,
        np.array([UNLIMITED if room is None else room for room in instance.capacity], np.int64),
    )


def _without_links(instance: Instance) -> tuple[Sequence[_Request], _RouteTables]:
    """An output to all that it reaches with the same delays is one request; each pair of devices has one route."""
    matrices: dict[int, tuple[int, Sequence[Sequence[int]]]] = {}
    requests: dict[tuple[int, int], list[int]] = {}
    for op, arcs in enumerate(instance.successors):
        for target, delay in arcs:
            kind, _ = matrices.setdefault(id(delay), (len(matrices), delay))
            requests.setdefault((op, kind), []).append(target)
    devices = instance.device_count
    count = max(1, len(matrices)) * devices**2
    table = np.stack([np.arange(count), np.ones(count, np.int64)], axis=1).reshape(-1, devices, devices, 2)
    segments = np.zeros((count, FIRST_HOLD + 2))
    segments[:, 0] = np.array([delay for _, delay in matrices.values()] or segments[:, 0], np.float64).reshape(-1)
    sent = [(op, kind, 0, readers) for (op, kind), readers in requests.items()]
    return sent, (table, np.arange(count + 1, dtype=np.int64), segments, np.zeros((0, 5)))


def _over_links(instance: Instance) -> tuple[Sequence[_Request], _RouteTables]:
    assert instance.traffic is not None
    table = instance.traffic.routes
    if table not in _of_table:
        _of_table[table] = _timed(table, instance.device_count)
    classes, routes, _ = _of_table[table]
    sent = [(one.source, classes[one.size], table.bytes_of(one.size), one.readers) for one in instance.traffic.requests]
    return sent, routes


Hops = list[tuple[tuple[str, str], ...]]

_of_table: WeakKeyDictionary[RouteTable, tuple[dict[int, int], _RouteTables, list[Hops]]] = WeakKeyDictionary()


def hops_of(instance: Instance, segment: int) -> Hops:
    """The links of the route that a segment belongs to, segment by segment; none where no route leads."""
    assert instance.traffic is not None
    number = np.searchsorted(tables_of(instance).segments_at, segment, side="right") - 1
    return _of_table[instance.traffic.routes][2][number]


def _timed(routes: RouteTable, device_count: int) -> tuple[dict[int, int], _RouteTables, list[Hops]]:
    """Size → class, the routes, and their links.

    The ticks of a route are linear in the bytes, but for rounding: two sizes tell the line.
    """
    alike: dict[int, list[int]] = {}
    for size in routes.sizes:
        alike.setdefault(routes.first_like(size), []).append(size)
    table = np.zeros((max(1, len(alike)), device_count, device_count, 2), np.int64)
    found, segments_at, segments, holds = list[Hops](), [0], list[tuple[float, ...]](), list[tuple[float, ...]]()
    for kind, group in enumerate(alike.values()):
        least, most = group[0], group[-1]
        ends = routes.bytes_of(least), routes.bytes_of(most)
        for source, target in permutations(range(device_count), 2):
            several: list[Hops] = [[]]
            if routes.joined(least, source, target):
                timed = routes.between(least, source, target)[: None if device_count <= _MOST_WITH_DETOURS else 1]
                several = [[segment.hops for segment in route] for route in timed]
            table[kind, source, target] = len(found), len(several)
            for hops in several:
                for low, high in zip(routes.along(hops, least), routes.along(hops, most), strict=True):
                    first = len(holds)
                    for (link, begin, ticks), (_, later, longer) in zip(low.holds, high.holds, strict=True):
                        until = _line(ends, begin + ticks, later + longer, above=not routes.exact)
                        holds.append((link, *_line(ends, begin, later), *until))
                    segments.append((*_line(ends, low.ticks, high.ticks, above=not routes.exact), first, len(holds)))
                if not hops:
                    segments.append((FAR, 0.0, len(holds), len(holds)))
                segments_at.append(len(segments))
            found.extend(several)
    tables = (
        table,
        np.array(segments_at, np.int64),
        np.array(segments, np.float64).reshape(-1, FIRST_HOLD + 2),
        np.array(holds, np.float64).reshape(-1, 5),
    )
    return {size: kind for kind, group in enumerate(alike.values()) for size in group}, tables, found


def _line(ends: tuple[int, int], low: int, high: int, above: bool = False) -> tuple[float, float]:
    """Base and slope of a line through two values of ticks.

    Ticks may be rounded down. Then they lie between the line through two of them and that line plus one.

    Parameters
    ----------
    above
        Whether the line is nowhere below the ticks, in place of nowhere above them.
    """
    if ends[0] == ends[1]:
        return low + 1e-6, 0.0
    slope = (high - low) / (ends[1] - ends[0])
    return low - slope * ends[0] + (1.0 if above else 1e-6), slope
