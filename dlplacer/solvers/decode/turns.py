"""Turns of transfers: which are sent before the op that reads them has its turn, and over which routes."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.decode.arrays import CLASS, SOURCE, InstanceArrays, Ints, Tables
from dlplacer.solvers.instance.schedule import Schedule

TURN_REQUEST, TURN_TARGET, TURN_ROUTE, TURN_SEGMENT, TURN_NEXT = range(5)
"""Columns of `Turns.rows`: what is sent to which device, route, route segment, and the next turn before the same op."""


class Turns(NamedTuple):
    """Route segments that are sent when some op has its turn, ahead of the op that reads what they carry.

    Attributes
    ----------
    asks
        [op] → the first turn before it, -1: none.
    rows
        Table with the columns above.
    asker
        [request, device] → op before whose turn the first segment is sent, -1: its first reader there.
    """

    asks: Ints
    rows: Ints
    asker: Ints


def no_turns(arrays: InstanceArrays) -> Turns:
    """All is sent when its first reader has its turn, by the route on which it arrives first."""
    count, devices = arrays.ticks.shape
    asker = np.full((len(arrays.requests), devices), -1, np.int64)
    return Turns(np.full(count, -1, np.int64), np.zeros((0, TURN_NEXT + 1), np.int64), asker)


def turns_of(tables: Tables, schedule: Schedule, sequence: Sequence[int]) -> Turns:
    """The turns of a schedule's route segments by their starts, among the ops of a sequence by theirs.

    Taken so, each as early as what came before allows, none starts later than in the schedule, by induction: what came
    before has started no later, so it has ended where the schedule says, and the schedule's own place is free.
    """
    _, arrays, routes = tables
    turns = no_turns(arrays)
    starts = [schedule.start[op] for op in sequence]
    place = {op: position for position, op in enumerate(sequence)}
    found: list[tuple[int, int, int, int, int, int]] = []
    for transfer in schedule.transfers:
        source = int(arrays.requests[transfer.request, SOURCE])
        route = _number(arrays, routes, transfer, schedule.device[source])
        if route is None:
            continue
        before = 0
        for part, start in enumerate(transfer.start):
            before = max(before, bisect_left(starts, start), place.get(source, -1) + 1)
            segment = int(arrays.segments_at[route]) + part
            found.append((before, start, transfer.request, transfer.target, route, segment))
    found.sort()
    rows = [(*row[2:], -1) for row in found if row[0] < len(sequence)]
    for number in range(len(rows) - 1, -1, -1):
        request, target, route, segment, _ = rows[number]
        op = sequence[found[number][0]]
        rows[number] = request, target, route, segment, int(turns.asks[op])
        turns.asks[op] = number
        if segment == arrays.segments_at[route]:
            turns.asker[request, target] = op
    return turns._replace(rows=np.array(rows, np.int64).reshape(-1, TURN_NEXT + 1))


def _number(
    arrays: InstanceArrays, routes: Sequence[TimedRoute], transfer: ScheduledTransfer, source: int
) -> int | None:
    """The number of a transfer's route; None if it is not listed."""
    first, count = arrays.routes[arrays.requests[transfer.request, CLASS], source, transfer.target]
    hops = [segment.hops for segment in transfer.route]
    listed = (n for n in range(first, first + count) if [segment.hops for segment in routes[n]] == hops)
    return next(listed, None)
