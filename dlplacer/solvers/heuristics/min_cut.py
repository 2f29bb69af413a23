"""Placement by METIS's minimum-cut partition."""

import importlib
import importlib.util
from itertools import accumulate
from types import ModuleType

from dlplacer.core.errors import InputError
from dlplacer.solvers.bounds import arc_delays
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.heuristics.memory_packing import Fixed, Priority, fitted
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

_WEIGHT = 10**8
"""Largest sum of the weights passed to METIS, which adds them in 32-bit integers."""


def available() -> bool:
    """True if pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def min_cut(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The list schedule on a minimum-cut partition, or None if that placement does not fit in memory.

    METIS partitions the blocks by recursive bisection and minimises the sum of least delays across parts. Blocks weigh
    their mean durations; each part's weight is proportional to its device's speed. A block goes to the device of its
    part if pins and memory permit, otherwise to the device with most room. Sources follow their first reader.

    Raises InputError if pymetis is not installed.
    """
    if fixed is None or -1 in fixed:
        if not available():
            raise InputError(
                "method 'min-cut' needs the package pymetis; install it with: pip install 'dlplacer[partition]'"
            )
        if "min-cut" not in instance.known:
            instance.known["min-cut"] = _divided(instance, importlib.import_module("pymetis"))
        fixed = fitted(instance, instance.known["min-cut"], instance.order, fixed)
    return None if fixed is None else list_schedule(instance, priority, fixed)


def _divided(instance: Instance, metis: ModuleType) -> list[int]:
    """[block] → device of its part; 0 for blocks of sources only."""
    blocks = [block for block, ops in enumerate(instance.members) if any(op not in instance.sources for op in ops)]
    vertex = {block: number for number, block in enumerate(blocks)}
    rows: list[dict[int, float]] = [{} for _ in blocks]
    for op, arcs in enumerate(instance.successors):
        ask_time()
        for target, delay in arcs:
            ticks = arc_delays(instance, op, target, delay).cut
            one, other = (vertex.get(instance.block[end]) for end in (op, target))
            if one is not None and other is not None and ticks < FAR:
                rows[one][other] = rows[one].get(other, 0) + ticks
                rows[other][one] = rows[other].get(one, 0) + ticks
    weights = [sum(instance.mean_duration[op] for op in instance.members[block]) for block in blocks]
    total, cuts, speeds = sum(weights), sum(ticks for row in rows for ticks in row.values()), _speeds(instance)
    part = [0] * len(instance.members)
    if len(blocks) < 2:
        return part
    found = metis.part_graph(
        instance.device_count,
        metis.CSRAdjacency([0, *accumulate(map(len, rows))], [end for row in rows for end in row]),
        vweights=[_whole(weight, total) for weight in weights],
        eweights=[max(1, _whole(ticks, cuts)) for row in rows for ticks in row.values()],
        tpwgts=[speed / sum(speeds) for speed in speeds],
        recursive=True,
    )
    for block, device in zip(blocks, found.vertex_part, strict=True):
        part[block] = device
    return part


def _whole(weight: float, total: float) -> int:
    return int(weight * min(1.0, _WEIGHT / max(1.0, total)))


def _speeds(instance: Instance) -> list[float]:
    """[device] → its speed: sum of shortest durations ÷ sum of durations there, over the ops allowed there."""
    speeds = []
    for device in range(instance.device_count):
        ops = [op for op, allowed in enumerate(instance.allowed) if device in allowed]
        there = sum(instance.duration[op][device] for op in ops)
        speeds.append((1 + sum(instance.shortest[op] for op in ops)) / (1 + there) if ops else 1e-3)
    return speeds
