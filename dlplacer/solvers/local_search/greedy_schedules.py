"""Heuristics in machine code, over several ranks: as they are published, and reluctant to send, also on parts."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event

from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.memory_admission import is_memory_short
from dlplacer.solvers.instance.time_limit import ask_time
from dlplacer.solvers.local_search.arrays import build_arrays
from dlplacer.solvers.local_search.greedy_rules import Orders, Rule, published
from dlplacer.solvers.local_search.greedy_starts import in_machine_code
from dlplacer.solvers.local_search.rule_schedules import GreedySchedule, Tables, list_by
from dlplacer.solvers.local_search.solution import NEVER


@dataclass(frozen=True)
class GreedyParams:
    """The reluctances that are tried.

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


class CompiledHeuristics:
    """The heuristics on an instance.

    Parameters
    ----------
    tables
        Of the instance, with its blocks as units: ops of no time need not stay beside their neighbours here, as they do
        in a search by single moves.
    built_s
        Seconds that the tables took.
    """

    def __init__(self, tables: Tables, built_s: float) -> None:
        self._tables, self._built_s = tables, built_s
        self._orders = Orders(tables[0])

    @classmethod
    def of(cls, instance: Instance) -> "CompiledHeuristics | None":
        """The heuristics on an instance; None where links are not contended."""
        began, built = time.monotonic(), build_arrays(instance, instance.members)
        return None if built is None else cls((instance, *built), time.monotonic() - began)

    def finds_room(self, problem: Problem, incumbent: Incumbent) -> bool:
        """Where memory may be short, offer HEFT's schedule; whether it is a plan, or would be one anyway.

        Parameters
        ----------
        problem
            Whose instance it is.
        """
        instance = self._tables[0]
        if not is_memory_short(problem, instance):
            return True
        rule = next(published(instance, self._orders, range(instance.device_count)))
        found = list_by(self._tables, rule).schedule()
        return found is not None and incumbent.accepts(found)

    def offer(self, incumbent: Incumbent, subsets: Sequence[Sequence[int]], published_s: float, seconds: float) -> bool:
        """Offer what `best_greedy` finds; whether it finds anything."""
        now, budget = time.monotonic() - (1 + PARAMS.finish) * self._built_s, incumbent.budget
        found = best_greedy(
            self._tables, subsets, now + published_s, now + seconds, budget.workers, budget.stop, self._orders
        )
        schedule = found.schedule()
        incumbent.offer(schedule)
        return schedule is not None

    def instead_of(self, starts: Sequence[StartMethod], workers: int) -> list[StartMethod]:
        """Heuristics with those in machine code instead of those in Python that are the same."""
        return in_machine_code(self._tables, starts, workers)


def best_greedy(
    tables: Tables,
    subsets: Sequence[Sequence[int]],
    published_until: float,
    until: float,
    workers: int = 1,
    stop: Event | None = None,
    orders: Orders | None = None,
) -> GreedySchedule:
    """The best of several heuristics over ranks, reluctances and sets of devices, the first and while time allows.

    Parameters
    ----------
    subsets
        Devices that may be used, the machine first.
    published_until, until
        When to end what is published, and all else, on the monotonic clock, in seconds.
    stop
        Ends both once anything is found.
    orders
        Of the instance, if they are known.
    """
    instance, _, _ = tables
    work, best = sum(instance.shortest), GreedySchedule(tables, None, NEVER)
    orders = orders or Orders(instance)
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
            (published(instance, orders, subsets[0]), published_until),
            (_reluctant(orders, subsets), until),
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


def _reluctant(orders: Orders, subsets: Sequence[Sequence[int]]) -> Iterator[Rule]:
    """Each rank and reluctance on every set of devices in turn, and HEFT on those that are not the machine."""
    for order in map(orders.by_rank, DELAY_WEIGHTS):
        for reluctance in PARAMS.reluctances:
            yield from (Rule(order, devices, reluctance) for devices in subsets)
        for works_on in (False, True):
            yield from (Rule(order, devices, works_on=works_on) for devices in subsets[1:])
