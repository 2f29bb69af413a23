"""Min-cut partitioning with METIS (Karypis and Kumar 1998, SIAM J. Scientific Computing 20(1)), then a list schedule."""

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from dlplacer.errors import InputError
from dlplacer.solvers.heads import ArcDelays
from dlplacer.solvers.instance import FAR, Instance
from dlplacer.solvers.list_schedule import list_schedule
from dlplacer.solvers.settling import fitted
from dlplacer.solvers.timetable import Timetable

_WEIGHT = 10**8


def available() -> bool:
    """Whether pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def min_cut(instance: Instance, priority: Sequence[int], fixed: Sequence[int] | None = None) -> Timetable | None:
    """The list schedule on a partition of least cut, or None if memory does not suffice for that placement.

    METIS divides the blocks, weighted by their mean durations, into one part per device such that the parts' weights
    are in proportion to the devices' speeds and the least total delay of arcs is cut. It knows neither the direction of
    arcs nor pins nor memory: a block goes to the device of its part where that is possible, else to one with most room.
    Sources of zero time are not divided but follow their first reader.

    Parameters
    ----------
    priority
        [op] → place in the order of preference of the list schedule.
    fixed
        [block] → device, or -1 where the rule shall decide.

    Raises
    ------
    InputError
        If pymetis is not installed.
    """
    metis = _metis()
    if fixed is None:
        fixed = fitted(instance, _divided(instance, metis), instance.order)
    return None if fixed is None else list_schedule(instance, priority, fixed)


def _metis() -> ModuleType:
    if not available():
        raise InputError(
            "method 'min-cut' needs the package pymetis; install it with: pip install 'dlplacer[partition]'"
        )
    return importlib.import_module("pymetis")


def _divided(instance: Instance, metis: ModuleType) -> list[int]:
    """[block] → part; 0 for blocks of sources only."""
    devices = [device for device in range(instance.device_count) if any(device in row for row in instance.allowed)]
    blocks = [
        block for block, ops in enumerate(instance.members) if any(op not in instance.sources for op in ops)
    ]
    part = [devices[0] if devices else 0] * len(instance.members)
    if min(len(devices), len(blocks)) < 2:
        return part
    neighbours = _neighbours(instance, {block: position for position, block in enumerate(blocks)})
    starts, adjacent, cut = [0], [], []
    for row in neighbours:
        adjacent += row.keys()
        cut += row.values()
        starts.append(len(adjacent))
    speed = _speeds(instance, devices)
    found = metis.part_graph(
        len(devices),
        metis.CSRAdjacency(starts, adjacent),
        vweights=_scaled([sum(_mean(instance, op) for op in instance.members[block]) for block in blocks]),
        eweights=[max(1, weight) for weight in _scaled(cut)],
        tpwgts=[value / sum(speed) for value in speed],
    )
    for block, number in zip(blocks, found.vertex_part, strict=True):
        part[block] = devices[number]
    return part


def _neighbours(instance: Instance, position: dict[int, int]) -> list[dict[int, int]]:
    """[vertex] → neighbour → total least delay of the arcs between them, either way."""
    delays = ArcDelays(instance)
    rows: list[dict[int, int]] = [{} for _ in position]
    for op, arcs in enumerate(instance.successors):
        for target, delay in arcs:
            ticks = delays.cut(op, target, delay)
            ends = position.get(instance.block[op]), position.get(instance.block[target])
            if ends[0] is not None and ends[1] is not None and ticks < FAR:
                rows[ends[0]][ends[1]] = rows[ends[0]].get(ends[1], 0) + ticks
                rows[ends[1]][ends[0]] = rows[ends[1]].get(ends[0], 0) + ticks
    return rows


def _speeds(instance: Instance, devices: Sequence[int]) -> list[float]:
    """[part] → shortest durations ÷ durations on its device, over the ops that may run there."""
    speeds = []
    for device in devices:
        ops = [op for op, allowed in enumerate(instance.allowed) if device in allowed]
        there = sum(instance.duration[op][device] for op in ops)
        speeds.append(sum(instance.shortest[op] for op in ops) / there if there else 1.0)
    return [max(speed, max(speeds) / 1000) for speed in speeds]


def _mean(instance: Instance, op: int) -> int:
    devices = instance.allowed[op]
    return sum(instance.duration[op][device] for device in devices) // max(1, len(devices))


def _scaled(weights: Sequence[int]) -> list[int]:
    """Weights whose sum fits into the 32 bits that METIS counts with."""
    total = sum(weights)
    return list(weights) if total <= _WEIGHT else [weight * _WEIGHT // total for weight in weights]
