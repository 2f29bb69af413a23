"""Heuristics in machine code, over several ranks: as they are published, and reluctant to send, also on parts."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

import numpy as np

from dlplacer.core.errors import InputError
from dlplacer.problem.route_table import TimedRoute
from dlplacer.solvers.heuristics.common.memory_state import Priority
from dlplacer.solvers.heuristics.common.ready_order import by_release
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.cpop import values_and_path
from dlplacer.solvers.heuristics.min_cut import partition
from dlplacer.solvers.heuristics.peft import by_optimistic_cost, optimistic_costs
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time
from dlplacer.solvers.local_search.arrays import MEMBERS, InstanceArrays, Ints, build_arrays
from dlplacer.solvers.local_search.chain import Chain
from dlplacer.solvers.local_search.greedy import GAP_TO, GAPS, greedy
from dlplacer.solvers.local_search.list_scheduling import list_schedule, new_desk
from dlplacer.solvers.local_search.solution import DEVICE, NEVER, TRIAL_START, Solution


@dataclass(frozen=True)
class GreedyParams:
    """What is tried.

    Attributes
    ----------
    finish
        What the best of them takes to become a schedule, in times of what the tables took: 0.3 s for 10,000 ops.
    reluctances
        By how much the end of an op on a device counts as later for each tick that its inputs are on their way: what is
        sent holds up what is sent later, which the end does not tell. On a slow network each finds something else: a
        stencil of 2,000 ops on four hosts takes 87 ms by HEFT itself, 46 with 1 and 34 with 2.
    """

    finish: float = 1.5
    reluctances: tuple[float, ...] = (1.0, 0.25, 2.0, 4.0)


PARAMS = GreedyParams()

Tables = tuple[Instance, InstanceArrays, Sequence[TimedRoute]]
"""An instance, and what `build_arrays` makes of it."""


class Rule(NamedTuple):
    """How ops are taken and where they go: each where it ends first, or so that no device idles.

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


def offer_greedy(
    instance: Instance, incumbent: Incumbent, subsets: Sequence[Sequence[int]], published_s: float, seconds: float
) -> bool:
    """Offer what `best_greedy` finds; whether it finds anything, as not where links are not contended."""
    # Ops of no time need not stay beside their neighbours here, as they do in a search by single moves.
    began, built = time.monotonic(), build_arrays(instance, instance.members)
    if built is None:
        return False
    finish_s = PARAMS.finish * (time.monotonic() - began)
    until = began + published_s - finish_s, began + seconds - finish_s
    budget = incumbent.budget
    found = best_greedy((instance, *built), subsets, *until, budget.workers, budget.stop).schedule()
    incumbent.offer(found)
    return found is not None


def best_greedy(
    tables: Tables,
    subsets: Sequence[Sequence[int]],
    published_until: float,
    until: float,
    workers: int = 1,
    stop: Event | None = None,
) -> "GreedySchedule":
    """The best of several heuristics over ranks, reluctances and sets of devices, the first and while time allows.

    Parameters
    ----------
    subsets
        Devices that may be used, the machine first.
    published_until, until
        When to end what is published, and all else, on the monotonic clock, in seconds.
    stop
        Ends both once anything is found.
    """
    instance, _, _ = tables
    work, best = sum(instance.shortest), GreedySchedule(tables, None, NEVER)
    ranks = _Ranks(instance)
    running: set[Future[GreedySchedule]] = set()

    def ended(at_most: int) -> GreedySchedule:
        """The best so far, once no more than so many run."""
        found = best
        while len(running) > at_most:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            running.difference_update(done)
            found = min(found, *(one.result() for one in done), key=lambda one: one.makespan)
        return found

    # Threads suffice: compiled code releases the interpreter's lock.
    with ThreadPoolExecutor(workers) as pool:
        for rules, stop_at in (
            (_published(instance, ranks, subsets[0]), published_until),
            (_reluctant(ranks, subsets), until),
        ):
            # The first take less than the tables did that they read: half a second for 100,000 ops.
            while best.makespan == NEVER or (time.monotonic() < stop_at and not (stop and stop.is_set())):
                ask_time()
                rule = next(rules, None)
                if rule is None:
                    break
                if work < best.makespan * len(rule.devices):
                    running.add(pool.submit(list_by, tables, rule))
                # One alone first: what the others read takes as long on large graphs.
                best = ended(0 if best.makespan == NEVER else workers - 1)
            best = ended(0)
    return best


class _Ranks:
    """Places of the ops by upward rank, and the ops in that order, each made when it is first asked for."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._places: dict[float, Priority] = {}
        self._orders: dict[float, list[int]] = {}

    def place(self, weight: float) -> Priority:
        if weight not in self._places:
            self._places[weight] = by_rank(self._instance, upward_ranks(self._instance, weight))
        return self._places[weight]

    def order(self, weight: float) -> list[int]:
        if weight not in self._orders:
            self._orders[weight] = _order(self.place(weight))
        return self._orders[weight]


def _published(instance: Instance, ranks: _Ranks, devices: Sequence[int]) -> Iterator[Rule]:
    """HEFT, a list schedule, one on a partition of least cut, CPOP and PEFT by one rank, then by the others."""
    first, *others = DELAY_WEIGHTS
    yield Rule(ranks.order(first), devices)
    yield Rule(ranks.order(first), devices, works_on=True)
    placement = None
    with suppress(InputError):
        # Where pymetis is not installed there is none.
        placement = partition(instance)
    if placement is not None:
        yield Rule(ranks.order(first), devices, works_on=True, placement=placement)
    value, path = values_and_path(instance)
    yield Rule(_order(by_release(instance, value, ranks.place(first))), devices, placement=path)
    table = optimistic_costs(instance)
    for weight in DELAY_WEIGHTS:
        yield Rule(_order(by_optimistic_cost(instance, table, ranks.place(weight))), devices, ahead=table)
    yield from (Rule(ranks.order(weight), devices, works_on=True) for weight in others)
    if placement is not None:
        yield from (Rule(ranks.order(weight), devices, works_on=True, placement=placement) for weight in others)
    yield from (Rule(ranks.order(weight), devices) for weight in others)


def _reluctant(ranks: _Ranks, subsets: Sequence[Sequence[int]]) -> Iterator[Rule]:
    """Each rank and reluctance on every set of devices in turn, and HEFT on those that are not the machine."""
    for order in map(ranks.order, DELAY_WEIGHTS):
        for reluctance in PARAMS.reluctances:
            yield from (Rule(order, devices, reluctance) for devices in subsets)
        for works_on in (False, True):
            yield from (Rule(order, devices, works_on=works_on) for devices in subsets[1:])


def _order(place: Priority) -> list[int]:
    return sorted(range(len(place)), key=place.__getitem__)


class GreedySchedule:
    """Devices and starts that a rule has found, or none.

    Attributes
    ----------
    makespan
        In ticks as the compiled code counts; `NEVER` if memory or allowed devices do not suffice.
    """

    def __init__(self, tables: Tables, made: tuple[Chain, Solution] | None, makespan: int) -> None:
        self._tables, self._made, self.makespan = tables, made, makespan

    def chain(self) -> Chain | None:
        """A chain that begins with it, with the rule's own transfers or with those that its order gives."""
        found = self.schedule()
        return None if found is None else Chain.of(*self._tables, found)

    def schedule(self) -> Schedule | None:
        """With the rule's own transfers; a transfer of rounded ticks may begin one later than it could."""
        if self._made is None or self.makespan == NEVER:
            return None
        first, solution = self._made
        device, start = solution.ops[:, DEVICE].tolist(), solution.ops[:, TRIAL_START].tolist()
        return Schedule(tuple(device), tuple(start), self.makespan, tuple(first.transfers(solution)))


def list_by(tables: Tables, rule: Rule) -> GreedySchedule:
    """What a rule finds."""
    instance, arrays, routes = tables
    if rule.placement is not None:
        tables = instance, _placed(instance, arrays, rule.placement), routes
    usable = np.zeros(instance.device_count, np.int64)
    usable[list(rule.devices)] = 1
    ops = np.array([op for op in rule.order if op not in instance.sources], np.int64)
    first = Chain(*tables, np.zeros(instance.op_count, np.int64), ops)
    build = _without_idling(tables, rule, usable) if rule.works_on else _ending_first(tables, rule, usable)
    solution, makespan = first.filled(build)
    return GreedySchedule(tables, (first, solution), makespan)


def _placed(instance: Instance, arrays: InstanceArrays, placement: Sequence[int]) -> InstanceArrays:
    """The same tables with every unit allowed only where its first op is placed."""
    allowed = arrays.allowed.copy()
    for unit, first in enumerate(arrays.lists[arrays.units[:, MEMBERS]].tolist()):
        here = placement[instance.block[first]]
        if here >= 0:
            allowed[unit, :here], allowed[unit, here + 1 :] = 0, 0
    return arrays._replace(allowed=allowed)


def _without_idling(tables: Tables, rule: Rule, usable: Ints) -> Callable[[Solution], int]:
    instance, arrays, _ = tables
    order = np.array(rule.order, np.int64)

    def build(solution: Solution) -> int:
        return list_schedule(arrays, solution, new_desk(arrays, usable, order), not instance.uniform)

    return build


def _ending_first(tables: Tables, rule: Rule, usable: Ints) -> Callable[[Solution], int]:
    instance, arrays, _ = tables
    ahead = np.zeros((0, instance.device_count), np.int64) if rule.ahead is None else rule.ahead
    booked = np.zeros((instance.device_count, len(rule.order) + 2, GAP_TO + 1), np.int64)
    rows = np.zeros((instance.device_count, GAPS + 1), np.int64)

    def build(solution: Solution) -> int:
        placed = np.zeros(len(arrays.units), np.int64)
        return greedy(arrays, solution, usable, placed, ahead, booked, rows, rule.reluctance)

    return build
