"""Area bounds: how long the devices need at least for a set of ops, whatever their order.

Put a price a_d ≥ 0 on a tick of every device, N = Σ a_d in all. An op costs at least the minimum of price × duration
over its allowed devices; ops that all run within T ticks cost at most T·N. So T ≥ ⌈Σ cost ÷ N⌉. Equal prices give
work ÷ devices; other prices do better where devices are unequal or ops pinned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlplacer.solvers.instance.instance import Instance

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
