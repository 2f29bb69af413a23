"""METIS's partition of least cut."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
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
"""Sum of all weights handed to METIS, whose integers have 32 bits and are added up."""


def available() -> bool:
    """True if pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def min_cut(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The list schedule on a partition of least cut, or None if memory does not suffice for that placement.

    METIS halves blocks and devices until every part has one device. The blocks weigh their mean durations; a half gets
    weight in proportion to the speed of its devices, and the total least delay of the arcs between the halves shall be
    small. METIS knows neither the direction of arcs nor pins nor memory: a block goes to the device of its part where
    that is possible, else to one with most room. Sources of zero time are not divided but follow their first reader.

    Raises
    ------
    InputError
        If pymetis is not installed.
    """
    if fixed is None or -1 in fixed:
        if "min-cut" not in instance.known:
            instance.known["min-cut"] = _divided(instance, _metis())
        fixed = fitted(instance, instance.known["min-cut"], instance.order, fixed)
    return None if fixed is None else list_schedule(instance, priority, fixed)


@dataclass(frozen=True)
class _Network:
    """The graph that METIS divides: blocks with weights, and [vertex] → neighbour → ticks that a cut there costs."""

    blocks: tuple[int, ...]
    weight: tuple[int, ...]
    neighbours: tuple[dict[int, int], ...]


def _metis() -> ModuleType:
    if not available():
        raise InputError(
            "method 'min-cut' needs the package pymetis; install it with: pip install 'dlplacer[partition]'"
        )
    return importlib.import_module("pymetis")


def _divided(instance: Instance, metis: ModuleType) -> list[int]:
    """[block] → device of its part; 0 for blocks of sources only."""
    network, speed = _network(instance), _speeds(instance)
    part = [0] * len(instance.members)
    pending = [(list(range(len(network.blocks))), list(range(instance.device_count)))]
    while pending:
        ask_time()
        vertices, devices = pending.pop()
        if len(devices) == 1 or len(vertices) < 2:
            for vertex in vertices:
                part[network.blocks[vertex]] = devices[0]
            continue
        sides = devices[: len(devices) // 2], devices[len(devices) // 2 :]
        first, second = (sum(speed[device] for device in side) for side in sides)
        pending += zip(_halves(network, metis, vertices, first / (first + second)), sides, strict=True)
    return part


def _halves(network: _Network, metis: ModuleType, vertices: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """The vertices in two parts, the first with about this share of their weight."""
    position = {vertex: number for number, vertex in enumerate(vertices)}
    rows = [
        [(position[end], cut) for end, cut in network.neighbours[vertex].items() if end in position]
        for vertex in vertices
    ]
    found = metis.part_graph(
        2,
        metis.CSRAdjacency([0, *accumulate(map(len, rows))], [end for row in rows for end, _ in row]),
        vweights=[network.weight[vertex] for vertex in vertices],
        eweights=[cut for row in rows for _, cut in row],
        tpwgts=[share, 1 - share],
    )
    sides: tuple[list[int], list[int]] = [], []
    for vertex, side in zip(vertices, found.vertex_part, strict=True):
        sides[side].append(vertex)
    return sides


def _network(instance: Instance) -> _Network:
    blocks = [block for block, ops in enumerate(instance.members) if any(op not in instance.sources for op in ops)]
    vertex = {block: number for number, block in enumerate(blocks)}
    rows: list[dict[int, float]] = [{} for _ in blocks]
    for op, arcs in enumerate(instance.successors):
        ask_time()
        for target, delay in arcs:
            ticks = arc_delays(instance, op, target, delay).cut
            ends = vertex.get(instance.block[op]), vertex.get(instance.block[target])
            if ends[0] is not None and ends[1] is not None and ticks < FAR:
                rows[ends[0]][ends[1]] = rows[ends[0]].get(ends[1], 0) + ticks
                rows[ends[1]][ends[0]] = rows[ends[1]].get(ends[0], 0) + ticks
    weights = [sum(instance.mean_duration[op] for op in instance.members[block]) for block in blocks]
    total, cuts = sum(weights), sum(ticks for row in rows for ticks in row.values())
    return _Network(
        tuple(blocks),
        tuple(_whole(weight, total) for weight in weights),
        tuple({end: max(1, _whole(ticks, cuts)) for end, ticks in row.items()} for row in rows),
    )


def _whole(weight: float, total: float) -> int:
    """A weight such that the total fits into the 32 bits that METIS counts with."""
    return int(weight * min(1.0, _WEIGHT / max(1.0, total)))


def _speeds(instance: Instance) -> list[float]:
    """[device] → shortest durations ÷ durations there, over the ops that may run there."""
    speeds = []
    for device in range(instance.device_count):
        ops = [op for op, allowed in enumerate(instance.allowed) if device in allowed]
        there = sum(instance.duration[op][device] for op in ops)
        speeds.append((1 + sum(instance.shortest[op] for op in ops)) / (1 + there) if ops else 1e-3)
    return speeds
