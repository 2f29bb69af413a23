"""Heuristics in machine code one by one, as their methods are in Python: for surrogates, and for what is placed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dlplacer.core.errors import InputError
from dlplacer.problem.problem import Problem
from dlplacer.solvers.heuristics.common.pack import pack
from dlplacer.solvers.heuristics.construct import DELAY_WEIGHTS
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time
from dlplacer.solvers.local_search.arrays import adapted
from dlplacer.solvers.local_search.greedy_rules import HEURISTICS, ByWeight, Orders, listed
from dlplacer.solvers.local_search.rule_schedules import Tables, list_by

_COSTS = {"heft": 0.05, "list": 0.1, "min-cut": 0.1, "cpop": 0.1, "peft": 0.1}
"""Heuristic → about how long one in machine code takes, in list schedules in Python."""


def in_machine_code(tables: Tables, starts: Sequence[StartMethod], workers: int) -> list[StartMethod]:
    """The same heuristics, in machine code where there are such, the quick ones first.

    Their schedules of 2,400 ops on six devices take 0.05 to 0.2 s, in Python 1 to 2.

    Parameters
    ----------
    tables
        Of the problem's own instance, with blocks as units; the heuristics may be asked for others that differ in
        footprints, capacities and allowed devices.
    """
    orders = Orders(tables[0])

    def compiled(start: StartMethod) -> StartMethod:
        name = start.in_machine_code
        if name is None:
            return start
        return start._replace(cost=_COSTS[name], find=partial(_construct, name, tables, orders, workers))

    return sorted(map(compiled, starts), key=lambda start: start.cost)


def _construct(
    name: str, tables: Tables, orders: Orders, workers: int, problem: Problem, seen: Instance
) -> Schedule | None:
    """The best schedule of a heuristic over all ranks, on a packed placement where it runs out of memory."""
    instance, arrays, routes = tables
    devices = range(instance.device_count)
    tables = seen, adapted(arrays, instance, seen), routes
    try:
        by_weight = HEURISTICS[name](seen, orders, devices)
    except InputError:
        return None
    found = None if by_weight is None else _best(tables, by_weight, workers)
    packed = pack(seen) if found is None else None
    if packed is None:
        return found
    on_packed = by_weight or listed(seen, orders, devices)
    return _best(tables, lambda weight: on_packed(weight)._replace(placement=packed), workers)


def _best(tables: Tables, by_weight: ByWeight, workers: int) -> Schedule | None:
    ask_time()
    rules = [by_weight(weight) for weight in DELAY_WEIGHTS]
    with ThreadPoolExecutor(min(workers, len(rules))) as pool:
        return min(pool.map(partial(list_by, tables), rules), key=lambda made: made.makespan).schedule()
