"""Ops that run one after another whatever the placement, where memory is short: annealing of the placement alone.

The length of a path through all ops is then the makespan, and a move changes a few sums of it.
"""

import math
from dataclasses import dataclass

from dlplacer.solvers.assignment.path import PathLoads
from dlplacer.solvers.decode.in_sequence import in_sequence
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import now
from dlplacer.solvers.local_search.load_annealing import LoadAnnealing, load_tables


@dataclass(frozen=True)
class SerialParams:
    """Settings of the annealing of placements.

    Attributes
    ----------
    round_s, rounds, patience
        Seconds of a round by op and device, if there is time for so many rounds, and how many in a row may bring
        nothing. Each cools down once and begins with the placement of the last.
    scale
        Mean durations of an op of the path in which the temperatures of `LoadAnnealing` count.
    steps
        The smallest memory in steps of the room that placements leave.
    """

    round_s: float = 1e-3
    rounds: int = 12
    patience: int = 8
    scale: float = 50.0
    steps: int = 256


PARAMS = SerialParams()

_SEEDS = 1000
"""Seeds that a round may use up."""


def anneal_serial(instance: Instance, incumbent: Incumbent, path: list[int], seconds: float) -> None:
    """Offer the best placements found, each with its ops in topological order.

    Memory over time is known to the incumbent alone: where it refuses a placement, the next ones leave more room on
    every device, and less where it does not.

    Parameters
    ----------
    path
        All ops that take time, each after the one before.
    """
    assert incumbent.best is not None
    began, budget, seed = now(), incumbent.budget, incumbent.budget.seed % 2**31
    loads = PathLoads(instance, path)
    tables = load_tables(instance, loads)
    scale = PARAMS.scale * max(1.0, sum(instance.mean_duration[op] for op in path) / len(path))
    round_s = min(PARAMS.round_s * len(path) * instance.device_count, seconds / PARAMS.rounds)
    placement = [incumbent.best.device[ops[0]] for ops in instance.members]
    step = min((size for size in instance.capacity if size is not None), default=0) // PARAMS.steps
    refused, accepted, room, in_vain = 0, math.inf, 0, 0
    while now() < began + seconds and in_vain < PARAMS.patience and budget.left_s and not incumbent.closed:
        before = incumbent.best.makespan
        rooms = [None if size is None else size - room for size in instance.capacity]
        search = LoadAnnealing(tables, rooms, loads.load_count)
        search.begin(placement)
        search.cool(min(round_s, began + seconds - now()), seed, lambda: not budget.left_s, scale)
        seed, found = seed + _SEEDS, None if search.least < 0 else search.best.tolist()
        placement = found or placement
        devices = [placement[block] for block in instance.block]
        if found is None or incumbent.accepts(in_sequence(instance, devices, instance.order)):
            accepted = room
        else:
            refused = room
        in_vain = in_vain + 1 if incumbent.best.makespan == before else 0
        between = 2 * refused if math.isinf(accepted) else (refused + int(accepted)) // 2
        room = max(between, step) if accepted - refused > step else int(accepted)


def compile_load_code(instance: Instance) -> None:
    """Have the code that anneals by loads compiled."""
    loads = PathLoads(instance, list(instance.order))
    search = LoadAnnealing(load_tables(instance, loads), instance.capacity, loads.load_count)
    search.begin([0] * len(instance.members))
    search.cool(1e-3, 0, lambda: False)
