"""The tables of a solution of the local search, and of a trial that changes it."""

from typing import NamedTuple

from dlplacer.solvers.local_search.arrays import Ints

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
