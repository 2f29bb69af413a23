"""Schedules by rules in machine code."""

from collections.abc import Callable, Sequence

import numpy as np

from dlplacer.problem.route_table import TimedRoute
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.local_search.arrays import BYTES, MEMBERS, InstanceArrays, Ints
from dlplacer.solvers.local_search.chain import Chain
from dlplacer.solvers.local_search.greedy import GAP_TO, GAPS, greedy
from dlplacer.solvers.local_search.greedy_rules import Rule
from dlplacer.solvers.local_search.list_scheduling import list_schedule, new_desk
from dlplacer.solvers.local_search.solution import DEVICE, NEVER, TRIAL_START, Solution

Tables = tuple[Instance, InstanceArrays, Sequence[TimedRoute]]
"""An instance, and what `build_arrays` makes of it."""


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
    """The schedule that a rule finds."""
    instance, arrays, routes = tables
    seen = tables if rule.placement is None else (instance, _placed(instance, arrays, rule.placement), routes)
    usable = np.zeros(instance.device_count, np.int64)
    usable[list(rule.devices)] = 1
    ops = np.array([op for op in rule.order if op not in instance.sources], np.int64)
    first = Chain(*tables, np.zeros(instance.op_count, np.int64), ops)
    build = _without_idling(seen, rule, usable) if rule.works_on else _ending_first(seen, rule, usable)
    solution, makespan = first.filled(build)
    return GreedySchedule(tables, (first, solution), makespan)


def _placed(instance: Instance, arrays: InstanceArrays, placement: Sequence[int]) -> InstanceArrays:
    """The same tables with every unit allowed only where its first op is placed, and its memory taken there."""
    allowed, units, capacity = arrays.allowed.copy(), arrays.units.copy(), arrays.capacity.copy()
    for unit, first in enumerate(arrays.lists[arrays.units[:, MEMBERS]].tolist()):
        here = placement[instance.block[first]]
        if here >= 0:
            allowed[unit, :here], allowed[unit, here + 1 :] = 0, 0
            capacity[here] -= units[unit, BYTES]
            units[unit, BYTES] = 0
    return arrays._replace(allowed=allowed, units=units, capacity=capacity)


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
