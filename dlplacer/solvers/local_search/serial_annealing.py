"""Ops that run one after another whatever the placement, where memory is short: annealing of the placement alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import Delay, Instance
from dlplacer.solvers.instance.schedule import Incumbent
from dlplacer.solvers.instance.time_limit import now
from dlplacer.solvers.local_search.placement_annealing import (
    PlacementAnnealing,
    PlacementTables,
    build_placement_tables,
)


@dataclass(frozen=True)
class SerialParams:
    """Settings of the annealing of placements.

    Attributes
    ----------
    round_s, rounds, patience
        Seconds of a round by op and device, if there is time for so many rounds, and how many in a row may bring
        nothing. Each cools down once and begins with the placement of the last.
    temperatures
        The first and the last, in mean durations of an op of the path.
    steps
        The smallest memory in steps of the room that placements leave.
    """

    round_s: float = 1e-3
    rounds: int = 12
    patience: int = 8
    temperatures: tuple[float, float] = (0.5, 0.0025)
    steps: int = 256


PARAMS = SerialParams()


def anneal_serial(instance: Instance, incumbent: Incumbent, path: Sequence[int], seconds: float) -> None:
    """Offer the best placements found, each with its ops in topological order.

    Memory over time is known to the incumbent alone: where it refuses a placement, the next ones leave more room on
    every device, and less where it does not.

    Parameters
    ----------
    path
        All ops that take time, each after the one before.
    """
    assert incumbent.best is not None
    began, budget, tables = now(), incumbent.budget, path_tables(instance, path)
    round_s = min(PARAMS.round_s * len(path) * instance.device_count, seconds / PARAMS.rounds)
    first, last = (temperature / len(path) for temperature in PARAMS.temperatures)
    place = [incumbent.best.device[ops[0]] for ops in instance.members]
    step = min((size for size in instance.capacity if size is not None), default=0) // PARAMS.steps
    refused, accepted, room, in_vain, turn = 0, math.inf, 0, 0, 0
    while now() < began + seconds and in_vain < PARAMS.patience and budget.left_s and not incumbent.closed:
        before, turn = incumbent.best.makespan, turn + 1
        search = PlacementAnnealing(tables, instance.capacity, room)
        search.begin(place)
        left_s = min(round_s, began + seconds - now())
        search.cool((first, last), left_s, 1000 * (budget.seed + turn), budget.stop.is_set)
        if search.least >= 0:
            place = search.best.tolist()
        devices = [place[block] for block in instance.block]
        if search.least < 0 or incumbent.accepts(in_sequence(instance, devices, instance.order)):
            accepted = room
        else:
            refused = room
        in_vain = in_vain + 1 if incumbent.best.makespan == before else 0
        between = 2 * refused if math.isinf(accepted) else (refused + int(accepted)) // 2
        room = max(between, step) if accepted - refused > step else int(accepted)


def path_tables(instance: Instance, path: Sequence[int]) -> PlacementTables:
    """The length of a path as the only load of all placements."""
    kinds: dict[Delay, int] = {}
    requests = []
    for op, behind in pairwise(path):
        if instance.block[op] != instance.block[behind]:
            delay = next(delay for target, delay in instance.successors[op] if target == behind)
            kind = kinds.setdefault(delay, len(kinds))
            requests.append((instance.block[op], [instance.block[behind]], kind))
    along = [instance.block[op] for op in path]
    return build_placement_tables(
        instance,
        list(dict.fromkeys((*along, *instance.block))),
        [0] * instance.device_count,
        requests,
        np.zeros((len(kinds), instance.device_count, instance.device_count, 2), np.int64),
        [[(0, ticks)] for delay in kinds for row in delay for ticks in row],
    )
