"""Published heuristics as the rules that their machine code works by: an order of ops, and their devices."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from dlplacer.core.errors import InputError
from dlplacer.solvers.heuristics.common.memory_state import Priority
from dlplacer.solvers.heuristics.common.ready_order import by_release
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.cpop import path_sites, values
from dlplacer.solvers.heuristics.min_cut import partition
from dlplacer.solvers.heuristics.peft import by_optimistic_cost, optimistic_costs
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.local_search.arrays import Ints


class Rule(NamedTuple):
    """An order of ops, and a rule for their devices: each where it ends first, or so that no device idles.

    Attributes
    ----------
    order
        All ops, each after what it reads.
    devices
        Those that may be used.
    reluctance
        As in `GreedyParams`.
    ahead
        [op, device] → ticks that count besides the end there, as PEFT's; None: none, as HEFT has it.
    works_on
        Whether no device idles while an op could run on it (`list_schedule`).
    placement
        [block] → device, -1 where that is not decided; None: nowhere.
    """

    order: Sequence[int]
    devices: Sequence[int]
    reluctance: float = 0.0
    ahead: Ints | None = None
    works_on: bool = False
    placement: Sequence[int] | None = None


class Orders:
    """The ops of an instance in the orders of published heuristics, each made when it is first asked for.

    Memory plays no part in them.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._places: dict[float, Priority] = {}
        self._by_rank: dict[float, list[int]] = {}

    def by_rank(self, weight: float) -> list[int]:
        """By upward rank, with delays of this weight."""
        if weight not in self._by_rank:
            self._by_rank[weight] = _order(self._place(weight))
        return self._by_rank[weight]

    def by_value(self, weight: float) -> list[int]:
        """CPOP's; of equal ops the one of higher rank is first."""
        return _order(by_release(self._instance, self.values, self._place(weight)))

    def by_cost(self, weight: float) -> list[int]:
        """PEFT's; of equal ops the one of higher rank is first."""
        return _order(by_optimistic_cost(self._instance, self.costs, self._place(weight)))

    @cached_property
    def costs(self) -> Ints:
        """[op, device] → PEFT's optimistic costs in ticks."""
        return optimistic_costs(self._instance)

    @cached_property
    def values(self) -> list[float]:
        """[op] → CPOP's value."""
        return values(self._instance)

    def _place(self, weight: float) -> Priority:
        if weight not in self._places:
            self._places[weight] = by_rank(self._instance, upward_ranks(self._instance, weight))
        return self._places[weight]


def _order(place: Priority) -> list[int]:
    return sorted(range(len(place)), key=place.__getitem__)


ByWeight = Callable[[float], Rule]
"""Weight of delays in upward ranks → the rule of a heuristic."""


def heft(instance: Instance, orders: Orders, devices: Sequence[int]) -> ByWeight:
    return lambda weight: Rule(orders.by_rank(weight), devices)


def listed(instance: Instance, orders: Orders, devices: Sequence[int]) -> ByWeight:
    return lambda weight: Rule(orders.by_rank(weight), devices, works_on=True)


def min_cut(instance: Instance, orders: Orders, devices: Sequence[int]) -> ByWeight | None:
    """None where memory does not suffice for its placement.

    Raises
    ------
    InputError
        If pymetis is not installed.
    """
    placement = partition(instance)
    if placement is None:
        return None
    return lambda weight: Rule(orders.by_rank(weight), devices, works_on=True, placement=placement)


def cpop(instance: Instance, orders: Orders, devices: Sequence[int]) -> ByWeight:
    path = path_sites(instance, orders.values)
    return lambda weight: Rule(orders.by_value(weight), devices, placement=path)


def peft(instance: Instance, orders: Orders, devices: Sequence[int]) -> ByWeight:
    return lambda weight: Rule(orders.by_cost(weight), devices, ahead=orders.costs)


HEURISTICS: dict[str, Callable[[Instance, Orders, Sequence[int]], ByWeight | None]] = {
    "heft": heft,
    "list": listed,
    "min-cut": min_cut,
    "cpop": cpop,
    "peft": peft,
}
"""Method → its rules. Where the ops go may depend on the instance's memory, their order does not."""


def published(instance: Instance, orders: Orders, devices: Sequence[int]) -> Iterator[Rule]:
    """HEFT, a list schedule, one on a partition of least cut, CPOP and PEFT by one rank, then by the others."""
    first, *others = DELAY_WEIGHTS
    by_end, working_on = heft(instance, orders, devices), listed(instance, orders, devices)
    yield by_end(first)
    yield working_on(first)
    parted = None
    with suppress(InputError):
        parted = min_cut(instance, orders, devices)
    if parted is not None:
        yield parted(first)
    yield cpop(instance, orders, devices)(first)
    yield from map(peft(instance, orders, devices), DELAY_WEIGHTS)
    for by_weight in (working_on, parted, by_end):
        if by_weight is not None:
            yield from map(by_weight, others)
