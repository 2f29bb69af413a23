"""The tables of a solution, and of a trial that changes it: a schedule in the making."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.decode.arrays import CLASS, OP_BYTES, READS, SOURCE, InstanceArrays, Ints, Tables
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


DEVICE, PLACE, PATH, START, END, TRIAL_START, TRIAL_END, DEVICE_BEFORE, PATH_BEFORE, ASKS = range(10)
"""Columns of `Solution.ops`: device, place in the sequence (-1 for sources), ticks from its start to the end of the
schedule along the longest path, its times, its times in the trial, its device and its path before it was moved, and
the first turn of a transfer ahead of it (-1: none)."""

ARRIVAL, ARRIVAL_LEG, TRIAL_ARRIVAL, TRIAL_EPOCH, SENT_LEG, TRIAL_SENT_LEG, TRIAL_SENT_EPOCH = range(7)
"""`Solution.arrivals`: when a request is on a device and its last leg (-1: never), when it is in the trial of which
epoch, the last of its legs that is sent (-1: none), and the same of the trial of which epoch."""

REQUEST, TARGET, SEGMENT, SEGMENT_LIMIT, BEGIN, ASKED_AT, LEG_PATH, PREVIOUS = range(8)
"""`Solution.legs`: request, device, route segment, the first one that is not of its route, start, place whose op asked
for it, longest path from its start, the leg before it on its route (-1: none)."""

FROM, TO, LEG = range(3)
"""`Solution.busy`: a use of a link direction."""

USES, TRIAL_USES, USES_EPOCH = range(3)
"""`Solution.links`: number of uses, in the trial too."""

LEGS, TRIAL_LEGS, EPOCH, MAKESPAN, CRITICAL, OVERFLOW = range(6)
"""`Solution.counts`; `OVERFLOW` is 1 if a table was too small."""

NOW, TRIAL = 0, 1
"""First index of `Solution.legs` and `Solution.busy`."""

NEVER = 2**62


class Solution(NamedTuple):
    """Devices and sequence, the run of them, and the run of a trial from some place on.

    Attributes
    ----------
    sequence
        The ops in turn.
    critical
        Ops at which a critical path may be shortened.
    used, free
        [device] → bytes, and a vector for use inside.
    turns, asker
        Of `Turns`.
    unsent
        What an op reads and is still to be sent, a heap for use inside: end of the producer, place in the op's list.
    """

    ops: Ints
    sequence: Ints
    arrivals: Ints
    legs: Ints
    busy: Ints
    links: Ints
    critical: Ints
    used: Ints
    free: Ints
    counts: Ints
    turns: Ints
    asker: Ints
    unsent: Ints


_FIRST_WIDTH = 64
"""Uses of a link direction for which tables have room at first."""


def filled(
    tables: Tables, devices: Ints, sequence: Ints, turns: Turns, build: Callable[[Solution], int], width: int = 0
) -> tuple[Solution, int]:
    """Tables with the trial of all that `build` makes, and its makespan; larger ones until they hold it.

    Parameters
    ----------
    width
        Uses of a link direction for which there shall be room at least.
    """
    width = max(width, _FIRST_WIDTH)
    while True:
        solution = _empty(tables, devices, sequence, turns, width)
        makespan = build(solution)
        if not solution.counts[OVERFLOW]:
            return solution, int(makespan)
        width *= 2


def width_of(solution: Solution) -> int:
    """Uses of a link direction for which there is room."""
    return int(solution.busy.shape[2])


def transfers(tables: Tables, solution: Solution) -> Iterator[ScheduledTransfer]:
    """The transfers of a trial of all; none where there is no traffic."""
    traffic = tables.instance.traffic
    if traffic is None:
        return
    rows = solution.legs[TRIAL, : solution.counts[TRIAL_LEGS]].tolist()
    route_of = np.searchsorted(tables.arrays.segments_at, [row[SEGMENT] for row in rows], side="right") - 1
    starts: list[tuple[int, ...]] = []
    for leg, row in enumerate(rows):
        starts.append((*(starts[row[PREVIOUS]] if row[PREVIOUS] >= 0 else ()), row[BEGIN]))
        hops = [segment.hops for segment in tables.routes[route_of[leg]]]
        if hops and row[SEGMENT] + 1 == row[SEGMENT_LIMIT]:
            route = traffic.routes.along(hops, traffic.requests[row[REQUEST]].size)
            yield ScheduledTransfer(row[REQUEST], row[TARGET], route, starts[leg])


def _empty(tables: Tables, devices: Ints, sequence: Ints, turns: Turns, width: int) -> Solution:
    """Tables for a solution that has not been run, with room for `width` uses of every link direction."""
    arrays, (count, device_count) = tables.arrays, tables.arrays.ticks.shape
    resources = int(arrays.holds[:, 0].max(initial=-1)) + 1
    table = np.zeros((count, ASKS + 1), np.int64)
    table[:, DEVICE], table[:, PLACE], table[:, ASKS] = devices, -1, turns.asks
    table[sequence, PLACE] = np.arange(len(sequence))
    used = np.zeros(device_count, np.int64)
    np.add.at(used, devices, arrays.ops[:, OP_BYTES])
    arrivals = np.zeros((len(arrays.requests), device_count, TRIAL_SENT_EPOCH + 1), np.int64)
    arrivals[:, :, ARRIVAL_LEG] = arrivals[:, :, SENT_LEG] = -1
    most_legs = width * (resources + len(arrays.requests) // _FIRST_WIDTH + 1)
    return Solution(
        table,
        sequence.copy(),
        arrivals,
        np.zeros((2, most_legs, PREVIOUS + 1), np.int64),
        np.zeros((2, resources, width, 3), np.int64),
        np.zeros((resources, 3), np.int64),
        np.zeros(2 * most_legs + len(sequence), np.int64),
        used,
        np.zeros(device_count, np.int64),
        np.zeros(6, np.int64),
        turns.rows,
        turns.asker,
        np.zeros((1, int((arrays.ops[:, READS + 1] - arrays.ops[:, READS]).max(initial=0)), 2), np.int64),
    )
