"""A plan on few well-connected devices, as a start on a machine of many.

On many devices with contended links the heuristics spread work over links that then hold it up, and searching takes
longer. What is found on a few devices, with no other one as a relay, is a plan of the whole machine; bounds found there
are none.
"""

from dataclasses import replace
from itertools import combinations

from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule

SUBSET_SIZE = 4


class SubsetIncumbent(Incumbent):
    """What is reached on some of the devices: its schedules go to the whole's incumbent, its bounds do not."""

    def __init__(self, outer: Incumbent, deadline: float) -> None:
        budget = replace(outer.budget, deadline=min(deadline, outer.budget.deadline), report=_unheard)
        super().__init__(budget, outer.admits)
        self.outer = outer

    def offer(self, schedule: Schedule | None) -> bool:
        """Keep a schedule if it is admitted and the best so far, and offer it to the whole; whether it is."""
        better = super().offer(schedule)
        if better:
            self.outer.offer(schedule)
        return better


def on_device_subset(instance: Instance, count: int = SUBSET_SIZE) -> Instance | None:
    """The instance limited to its best-connected devices; None if all are few, or they differ."""
    if instance.device_count <= count or not instance.uniform:
        return None
    chosen = best_connected(instance, count)
    limits = {}
    for block, ops in enumerate(instance.members):
        devices = tuple(device for device in instance.allowed[ops[0]] if device in chosen)
        if not devices:
            return None
        limits[block] = devices
    subset = instance.limited(limits)
    if subset.traffic is None:
        return subset
    return replace(subset, traffic=replace(subset.traffic, routes=subset.traffic.routes.among(chosen)))


def best_connected(instance: Instance, count: int) -> frozenset[int]:
    """Devices of least total delay between each other, grown from the nearest pair; delays are those of all arcs."""
    total = [[0] * instance.device_count for _ in range(instance.device_count)]
    for row in instance.successors:
        for _, delay in row:
            for source, ticks in enumerate(delay):
                for target, each in enumerate(ticks):
                    total[source][target] += min(each, FAR)
    devices = range(instance.device_count)

    def added(chosen: tuple[int, ...], device: int) -> int:
        return sum(total[device][other] + total[other][device] for other in chosen)

    def grown(pair: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        chosen, cost = pair, added(pair[:1], pair[1])
        while len(chosen) < count:
            rest = [device for device in devices if device not in chosen]
            nearest = min(rest, key=lambda device: added(chosen, device))
            cost += added(chosen, nearest)
            chosen = (*chosen, nearest)
        return cost, chosen

    return frozenset(min(grown(pair) for pair in combinations(devices, 2))[1])


def _unheard(makespan: int | None, bound: int) -> None:
    """Progress on some of the devices is not that of the whole."""
