"""A plan on a subset of well-connected devices, as a start on a machine of many.

On many devices with contended links the heuristics spread work over links that then hold it up, and searching takes
longer. What is found on a subset, with no other device as a relay, is a plan of the whole machine; bounds found there
are none.
"""

import time
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.segment_search import SegmentParams, solve_segments
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import FAR, Instance


@dataclass(frozen=True)
class SubsetParams:
    """What is searched on the subset.

    Attributes
    ----------
    size
        Devices. Up to four, all routes are looked at; forward graphs with branches gain nothing beyond about three.
    bound_share, restart_share, restarts
        As in the default method.
    segments
        Transfers get all the time: bounds of the subset are none, so proofs are of no use.
    """

    size: int = 4
    bound_share: float = 0.1
    restart_share: float = 0.1
    restarts: int = 150
    segments: SegmentParams = field(default_factory=lambda: SegmentParams(transfer_share=1.0))


PARAMS = SubsetParams()


def subset_incumbent(outer: Incumbent, deadline: float) -> Incumbent:
    """What is reached on some of the devices: its schedules go to the whole's incumbent, its bounds do not."""
    # Progress on some of the devices is not that of the whole.
    budget = replace(outer.budget, deadline=min(deadline, outer.budget.deadline), report=lambda makespan, bound: None)
    return Incumbent(budget, outer.admits, outer.offer)


def search_device_subset(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer schedules on the subset, if there is one: a list schedule, then what segments and restarts make of it."""
    subset = on_device_subset(instance)
    if subset is None:
        return
    known = subset_incumbent(incumbent, time.monotonic() + seconds)
    known.offer(construct(subset, list_schedule))
    if known.best is None:
        return
    bounds = lower_bounds(subset, PARAMS.bound_share * known.budget.left_s)
    known.raise_bound(bounds.makespan)
    solve_segments(subset, bounds, known, PARAMS.segments)
    improve(subset, known, PARAMS.restart_share * known.budget.left_s, PARAMS.restarts)


def on_device_subset(instance: Instance, count: int = PARAMS.size) -> Instance | None:
    """The instance limited to its best-connected devices; None if it has no more of them, or they differ."""
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
    one_way = np.zeros((instance.device_count, instance.device_count), dtype=np.int64)
    for row in instance.successors:
        for _, delay in row:
            one_way += np.minimum(delay, FAR)
    total, devices = (one_way + one_way.T).tolist(), range(instance.device_count)

    def added(chosen: tuple[int, ...], device: int) -> int:
        return sum(total[device][other] for other in chosen)

    def grown(pair: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        chosen, cost = pair, added(pair[:1], pair[1])
        while len(chosen) < count:
            rest = [device for device in devices if device not in chosen]
            nearest = min(rest, key=lambda device: added(chosen, device))
            cost += added(chosen, nearest)
            chosen = (*chosen, nearest)
        return cost, chosen

    return frozenset(min(grown(pair) for pair in combinations(devices, 2))[1])
