"""Interval area: between two ops on a path, all ops between them must run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.bounds.area import Ints, Prices
from dlplacer.solvers.bounds.heads_tails import arc_delays
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.time_limit import ask_time

_COLUMNS = 256
"""Pivots per matrix product: bounds the memory of the product, and lets each leave out the ops after its columns."""

_UNREACHED = -(2**40)
"""Ticks between pivots that no path joins: less than any horizon below 0."""


@dataclass(frozen=True)
class Intervals:
    """Least ticks between pivot ops.

    Attributes
    ----------
    pivots
        Ops in topological order.
    between
        [pivot][pivot] → ticks from the end of the first to the start of the second at least; very negative where no
        path leads.
    before, after
        [pivot] → ticks from 0 to its start, and from its end to the end of the schedule, at least.
    """

    pivots: Ints
    between: Ints
    before: Ints
    after: Ints


def interval_areas(instance: Instance, prices: Prices, most_pivots: int) -> Intervals:
    """Area bounds on what lies between every two of some pivots, and before and after each.

    Proof: for u before v, the ops that are after u and before v all run between the end of u and the start of v, so
    `Prices.ticks` of their cost fits there. A device other than u's gets its first such op no earlier than the least
    delay of any arc from u or an op after u that changes the device: on a path from u to that first op, some arc enters
    the device. The same holds backwards from v. So all used devices but one lose the sum of the two delays.
    """
    order = np.array(instance.order)
    # Ops of no time have no energy, and captured graphs have many of them.
    working = order[np.array([instance.longest[op] > 0 for op in instance.order], dtype=bool)]
    chosen = np.unique(np.linspace(0, len(working) - 1, min(len(working), most_pivots)).round().astype(np.int64))
    pivots = working[chosen]
    after, before = reachable(instance, working), reachable(instance.reversed, working)
    cost = prices.cost[working].astype(np.float64)
    leave, enter = _cut_delays(instance)[pivots], _cut_delays(instance.reversed)[pivots]
    below = np.unpackbits(after[pivots], axis=1, count=len(working)).astype(bool)
    above = np.unpackbits(before[pivots], axis=1, count=len(working)).astype(bool)
    between = np.full((len(pivots), len(pivots)), _UNREACHED, dtype=np.int64)
    for first in range(0, len(pivots), _COLUMNS):
        ask_time()
        last = min(first + _COLUMNS, len(pivots))
        width = int(chosen[last - 1]) + 1
        area = (below[:last, :width] * cost[:width]) @ above[first:last, :width].T.astype(np.float64)
        lost = np.minimum(leave[:last, None] + enter[None, first:last], FAR)
        ticks = prices.ticks(area.astype(np.int64), lost)
        between[:last, first:last] = np.where(below[:last, chosen[first:last]], ticks, _UNREACHED)
    return Intervals(
        pivots,
        between,
        prices.ticks((above @ cost).astype(np.int64), enter),
        prices.ticks((below @ cost).astype(np.int64), leave),
    )


def raised_heads(instance: Instance, intervals: Intervals, head: list[int]) -> list[int]:
    """Heads of the pivots raised by what lies before them, and between them and earlier pivots."""
    pivots = intervals.pivots
    known = np.array(head, dtype=np.int64)
    start = np.maximum(known[pivots], intervals.before)
    end = start + np.array(instance.shortest, dtype=np.int64)[pivots]
    for position in range(1, len(pivots)):
        late = int((end[:position] + intervals.between[:position, position]).max())
        if late > start[position]:
            end[position] += late - start[position]
            start[position] = late
    known[pivots] = start
    return [int(ticks) for ticks in known]


def backwards(intervals: Intervals) -> Intervals:
    """The intervals of the reversed instance."""
    return Intervals(
        intervals.pivots[::-1], intervals.between[::-1, ::-1].T, intervals.after[::-1], intervals.before[::-1]
    )


def reachable(instance: Instance, working: NDArray[np.int64]) -> NDArray[np.uint8]:
    """[op] → bits of the working ops that come after it."""
    bit = np.full(instance.op_count, -1)
    bit[working] = np.arange(len(working))
    reach = np.zeros((instance.op_count, (len(working) + 7) // 8), dtype=np.uint8)
    for op in reversed(instance.order):
        ask_time()
        row = reach[op]
        for target, _ in instance.successors[op]:
            row |= reach[target]
            if bit[target] >= 0:
                row[bit[target] // 8] |= 128 >> (bit[target] % 8)
    return reach


def _cut_delays(instance: Instance) -> Ints:
    """[op] → the least delay of an arc that changes the device, among those from the op or an op after it."""
    least = [FAR] * instance.op_count
    for op in reversed(instance.order):
        for target, delay in instance.successors[op]:
            least[op] = min(least[op], least[target], arc_delays(instance, op, target, delay).cut)
    return np.array(least, dtype=np.int64)
