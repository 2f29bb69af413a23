"""An instance with contended links as the tables that the compiled search works on.

Compiled code passes every array by value, fields and all: few tables with named columns compile and run many times
faster than many vectors. Lists of different lengths are all in one vector; tables hold their limits in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.route_table import RouteTable, TimedRoute
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.local_search.units import move_units

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNLIMITED = 2**60
"""Stands for the memory of a device without limit."""

MOST_WITH_DETOURS = 8
"""Devices up to which routes besides the quickest are listed: each pair takes a search of its own for them."""

IS_SOURCE, UNIT, WAITS, FREES, READS, WRITES, OP_BYTES = 0, 1, 2, 4, 6, 8, 10
"""Columns of `InstanceArrays.ops`: whether an op starts at 0 wherever it is, its unit, and the first of two limits of
lists: ops that it waits for without reading from them (the barrier's arcs), those that wait for it so, requests that it
reads, and requests that it is the source of; last the footprint of its block, which the block's first op brings."""

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


def build_arrays(
    instance: Instance, units: Sequence[Sequence[int]] | None = None
) -> tuple[InstanceArrays, list[TimedRoute]] | None:
    """The tables of an instance and its routes by number; None without contended links, or if some devices lack any.

    Parameters
    ----------
    units
        Ops that move together, of one or more blocks; `move_units` by default.
    """
    traffic = instance.traffic
    if traffic is None or not traffic.routes.resource_count or len(set(instance.component)) > 1:
        return None
    count, devices = instance.op_count, range(instance.device_count)
    reads = [*traffic.reads, *([()] * (count - len(traffic.reads)))]
    lists = _Lists()
    ops = np.zeros((count, OP_BYTES + 1), np.int64)
    ops[[members[0] for members in instance.members], OP_BYTES] = instance.footprint
    writes: list[list[int]] = [[] for _ in range(count)]
    for number, request in enumerate(traffic.requests):
        writes[request.source].append(number)
    frees: list[list[int]] = [[] for _ in range(count)]
    for op, arcs in enumerate(instance.predecessors):
        sent = {traffic.requests[number].source for number in reads[op]}
        waits = [source for source, _ in arcs if source not in sent]
        for source in waits:
            frees[source].append(op)
        ops[op, WAITS : WAITS + 2] = lists.add(waits)
        ops[op, READS : READS + 2] = lists.add(reads[op])
        ops[op, WRITES : WRITES + 2] = lists.add(writes[op])
        ops[op, IS_SOURCE] = op in instance.sources
    for op, row in enumerate(frees):
        ops[op, FREES : FREES + 2] = lists.add(row)
    classes, routes, tables = _tables(traffic.routes, sorted({request.size for request in traffic.requests}), devices)
    requests = [(request.source, classes[request.size], *lists.add(request.readers)) for request in traffic.requests]
    units = move_units(instance) if units is None else units
    for number, members in enumerate(units):
        ops[list(members), UNIT] = number
    footprints = [sum(instance.footprint[block] for block in {instance.block[op] for op in unit}) for unit in units]
    arrays = InstanceArrays(
        np.array(instance.duration, np.int64),
        ops,
        np.array(requests, np.int64).reshape(-1, READERS + 2),
        np.array([(size, *lists.add(unit)) for size, unit in zip(footprints, units, strict=True)], np.int64),
        np.array(lists.values, np.int64),
        np.array([traffic.routes.bytes_of(request.size) for request in traffic.requests], np.float64),
        _allowed(instance, units),
        *tables,
        _capacity(instance),
    )
    return arrays, routes


def adapted(arrays: InstanceArrays, own: Instance, other: Instance) -> InstanceArrays:
    """The tables of an instance with the footprints, capacities and allowed devices of another one.

    Parameters
    ----------
    arrays
        Of `own`, with its blocks as units.
    """
    ops, units, allowed = arrays.ops.copy(), arrays.units.copy(), arrays.allowed
    ops[[members[0] for members in other.members], OP_BYTES] = other.footprint
    units[:, BYTES] = other.footprint
    if other.allowed != own.allowed:
        allowed = _allowed(other, other.members)
    return arrays._replace(ops=ops, units=units, allowed=allowed, capacity=_capacity(other))


def _allowed(instance: Instance, units: Sequence[Sequence[int]]) -> Ints:
    devices = range(instance.device_count)
    return np.array([[all(d in instance.allowed[op] for op in unit) for d in devices] for unit in units], np.int64)


def _capacity(instance: Instance) -> Ints:
    return np.array([UNLIMITED if room is None else room for room in instance.capacity], np.int64)


class _Lists:
    """Lists of different lengths in one vector."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def add(self, values: Sequence[int]) -> tuple[int, int]:
        """Append a list; its limits."""
        first = len(self.values)
        self.values.extend(values)
        return first, len(self.values)


def _tables(
    routes: RouteTable, sizes: Sequence[int], devices: range
) -> tuple[dict[int, int], list[TimedRoute], tuple[Ints, Ints, Floats, Floats]]:
    """Size → class; the routes by number, timed for some size; the tables of `InstanceArrays` on routes.

    The ticks of a route are linear in the bytes, but for rounding: two sizes tell the line.
    """
    alike: dict[int, list[int]] = {}
    for size in sizes:
        alike.setdefault(routes.first_like(size), []).append(size)
    table = np.zeros((max(1, len(alike)), len(devices), len(devices), 2), np.int64)
    found: list[TimedRoute] = []
    segments_at, segments = [0], []
    holds: list[tuple[float, ...]] = []
    for kind, group in enumerate(alike.values()):
        least, most = group[0], group[-1]
        ends = routes.bytes_of(least), routes.bytes_of(most)
        for source in devices:
            for target in devices:
                if source == target:
                    continue
                several: Sequence[TimedRoute] = (routes.quickest(least, source, target),)
                if len(devices) <= MOST_WITH_DETOURS:
                    several = routes.between(least, source, target)
                table[kind, source, target] = len(found), len(several)
                found.extend(several)
                for route in several:
                    hops = [segment.hops for segment in route]
                    for low, high in zip(routes.along(hops, least), routes.along(hops, most), strict=True):
                        first = len(holds)
                        for (link, begin, ticks), (_, later, longer) in zip(low.holds, high.holds, strict=True):
                            holds.append(
                                (link, *_line(ends, begin, later), *_line(ends, begin + ticks, later + longer))
                            )
                        segments.append((*_line(ends, low.ticks, high.ticks), first, len(holds)))
                    segments_at.append(len(segments))
    return (
        {size: kind for kind, group in enumerate(alike.values()) for size in group},
        found,
        (
            table,
            np.array(segments_at, np.int64),
            np.array(segments, np.float64).reshape(-1, FIRST_HOLD + 2),
            np.array(holds, np.float64).reshape(-1, 5),
        ),
    )


def _line(ends: tuple[int, int], low: int, high: int) -> tuple[float, float]:
    """Base and slope of the line through two values, a little higher as values are rounded down."""
    slope = (high - low) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.0
    return low - slope * ends[0] + 1e-6, slope
