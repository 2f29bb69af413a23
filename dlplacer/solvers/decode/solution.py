"""The tables of a solution, and of a trial that changes it: a schedule in the making."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.decode.arrays import OP_BYTES, READS, Ints, Tables

DEVICE, PLACE, PATH, START, END, TRIAL_START, TRIAL_END, DEVICE_BEFORE, PATH_BEFORE = range(9)
"""Columns of `Solution.ops`: device, place in the sequence (-1 for sources), ticks from its start to the end of the
schedule along the longest path, its times, its times in the trial, and its device and its path before it was moved."""

ARRIVAL, ARRIVAL_LEG, TRIAL_ARRIVAL, TRIAL_EPOCH = range(4)
"""`Solution.arrivals`: when a request is on a device and its last leg (-1: never), and when it is in the trial of which
epoch."""

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
    unsent: Ints


_FIRST_WIDTH = 64
"""Uses of a link direction for which tables have room at first."""


def filled(
    tables: Tables, devices: Ints, sequence: Ints, build: Callable[[Solution], int], width: int = 0
) -> tuple[Solution, int]:
    """Tables with the trial of all that `build` makes, and its makespan; larger ones until they hold it.

    Parameters
    ----------
    width
        Uses of a link direction for which there shall be room at least.
    """
    width = max(width, _FIRST_WIDTH)
    while True:
        solution = _empty(tables, devices, sequence, width)
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


def _empty(tables: Tables, devices: Ints, sequence: Ints, width: int) -> Solution:
    """Tables for a solution that has not been run, with room for `width` uses of every link direction."""
    arrays, (count, device_count) = tables.arrays, tables.arrays.ticks.shape
    resources = int(arrays.holds[:, 0].max(initial=-1)) + 1
    table = np.zeros((count, PATH_BEFORE + 1), np.int64)
    table[:, DEVICE], table[:, PLACE] = devices, -1
    table[sequence, PLACE] = np.arange(len(sequence))
    used = np.zeros(device_count, np.int64)
    np.add.at(used, devices, arrays.ops[:, OP_BYTES])
    arrivals = np.zeros((len(arrays.requests), device_count, TRIAL_EPOCH + 1), np.int64)
    arrivals[:, :, ARRIVAL_LEG] = -1
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
        np.zeros((1, int((arrays.ops[:, READS + 1] - arrays.ops[:, READS]).max(initial=0)), 2), np.int64),
    )
