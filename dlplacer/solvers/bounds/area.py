"""Area bounds: how long the devices need at least for a set of ops, whatever their order.

Put a price a_d ≥ 0 on a tick of every device, N = Σ a_d in all. An op costs at least the minimum of price × duration
over its allowed devices; ops that all run within T ticks cost at most T·N. So T ≥ ⌈Σ cost ÷ N⌉. Equal prices give
work ÷ devices; other prices do better where devices are unequal or ops pinned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.bounds.heads_tails import arc_delays
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.time_limit import ask_time

_NO_PRICE = 1e-9
"""Stands for a price of 0 where forbidden devices, of infinite duration, would make that undefined."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PriceParams:
    """The search for prices by multiplicative weights (Arora, Hazan and Kale 2012).

    Attributes
    ----------
    units
        Whole units of the dearest price: prices are integers, so that bounds are exact, and round to 0.1 %.
    rounds
        Steps; the excess falls as one over the root of their number. Any prices give a valid bound.
    step
        Factor on the load in the exponent, divided by the root of the step's number. A guess, never tuned.
    """

    units: int = 2**10
    rounds: int = 100
    step: float = 4.0


PARAMS = PriceParams()


@dataclass(frozen=True)
class Prices:
    """[device] → price of a tick in whole units, and [op] → what the op costs at least."""

    device: Ints
    cost: Ints

    def ticks(self, cost: Ints, delay: Ints | int = 0) -> Ints:
        """Least time in which the devices can bear a cost, if all used ones but one lose `delay` ticks.

        Proof: a set U of used devices of price N(U) whose dearest costs m offers at most N(U)·T − (N(U) − m)·delay. For
        given m the T that bears the cost is monotone in N(U), hence least where U is the dearest alone or with all that
        cost no more; alone, it is least for the dearest of all.
        """
        prices = np.sort(self.device)
        least: Ints = -(-cost // prices[-1])
        for price in np.unique(prices[prices > 0]):
            total = prices[prices <= price].sum()
            least = np.minimum(least, -(-(cost + (total - price) * delay) // total))
        return least


def best_prices(instance: Instance) -> Prices:
    """The prices for which the bound on all ops together is highest, as far as multiplicative weights find them.

    All prices give a valid bound; the best ones solve the dual of the linear program that spreads each op in fractions
    over its devices.
    """
    if "prices" not in instance.known:
        instance.known["prices"] = _best_prices(instance)
    found: Prices = instance.known["prices"]
    return found


def _best_prices(instance: Instance) -> Prices:
    identical = instance.uniform and all(len(devices) == instance.device_count for devices in instance.allowed)
    device = np.ones(instance.device_count, dtype=np.int64) if identical else _search_prices(instance)
    cost = [
        min(int(device[d]) * instance.duration[op][d] for d in devices) for op, devices in enumerate(instance.allowed)
    ]
    return Prices(device, np.array(cost, dtype=np.int64))


def _search_prices(instance: Instance) -> Ints:
    duration = np.full((instance.op_count, instance.device_count), np.inf)
    for op, devices in enumerate(instance.allowed):
        duration[op, list(devices)] = [instance.duration[op][d] for d in devices]
    duration = duration[np.array(instance.longest) > 0]
    price = np.full(instance.device_count, 1.0 / instance.device_count)
    best, best_value = _whole(price), -1.0
    scale = max(1.0, float(sum(instance.longest)))
    for number in range(PARAMS.rounds):
        whole = _whole(price)
        spent = duration * np.maximum(whole, _NO_PRICE)
        value = float(spent.min(axis=1).sum()) / float(whole.sum())
        if value > best_value:
            best, best_value = whole, value
        cheapest = spent.argmin(axis=1)
        load = np.bincount(
            cheapest, weights=duration[np.arange(len(duration)), cheapest], minlength=instance.device_count
        )
        price = price * np.exp(PARAMS.step * load / scale / np.sqrt(number + 1.0))
        price /= price.sum()
    return best


def _whole(price: Floats) -> Ints:
    whole: Ints = np.rint(price / price.max() * PARAMS.units).astype(np.int64)
    return whole


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
