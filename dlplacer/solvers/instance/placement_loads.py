"""Loads that a placement alone decides: of devices and link directions in steady state, or the length of a path.

A load is a sum over blocks and over what is sent between their devices.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.loads import Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import Delay, Instance

Ints = NDArray[np.int64]

_MOST_CROSSINGS = 50_000
"""Ops × pairs of devices up to which a path is looked for. A guess."""


class PlacementLoads(NamedTuple):
    """The loads of all placements.

    Attributes
    ----------
    number, load_of
        Number of loads, and [device] → the load that the work of its ops and transfers counts for.
    work
        [block, device] → ticks of its ops.
    requests
        (block that sends, blocks that read, row of prices).
    sent, received
        [row, device, device] → ticks that the ends pay.
    on_links
        (row, device, device) → (load, ticks) of what a transfer adds to.
    """

    number: int
    load_of: Sequence[int]
    work: Ints
    requests: Sequence[tuple[int, tuple[int, ...], int]]
    sent: Ints
    received: Ints
    on_links: Mapping[tuple[int, int, int], Sequence[tuple[int, int]]]


def loads_of(problem: Problem, instance: Instance, loads: Loads) -> PlacementLoads:
    """The loads of devices and link directions under all placements."""
    devices = instance.device_count
    keys = list(product(range(len(problem.sizes_bytes)), range(devices), range(devices)))
    paid = np.array([loads.paid(*key) for key in keys], np.int64).reshape(-1, devices, devices, 2)
    requests = []
    for request in loads.requests:
        source = instance.block[request.source]
        readers = tuple(sorted({instance.block[reader] for reader in request.readers} - {source}))
        if readers:
            requests.append((source, readers, request.size))
    on_links = {
        (size, a, b): [(devices + number, ticks) for number, ticks in loads.on_links(size, a, b)]
        for size, a, b in keys
        if a != b
    }
    count = devices + loads.link_count
    return PlacementLoads(count, range(devices), _work(instance), requests, paid[..., 0], paid[..., 1], on_links)


def path_length(instance: Instance, path: Sequence[int]) -> PlacementLoads:
    """The length of a path as the only load of all placements."""
    kinds: dict[Delay, int] = {}
    requests = []
    for op, behind in pairwise(path):
        if instance.block[op] != instance.block[behind]:
            delay = next(delay for target, delay in instance.successors[op] if target == behind)
            kind = kinds.setdefault(delay, len(kinds))
            requests.append((instance.block[op], (instance.block[behind],), kind))
    devices = range(instance.device_count)
    on_links = {(kind, a, b): [(0, delay[a][b])] for delay, kind in kinds.items() for a in devices for b in devices}
    nothing = np.zeros((len(kinds), len(devices), len(devices)), np.int64)
    return PlacementLoads(1, [0] * len(devices), _work(instance), requests, nothing, nothing, on_links)


def serial_path(instance: Instance) -> list[int]:
    """A path through all ops that take time; empty if there is none, or too long a one."""
    depth, before = [0] * instance.op_count, [-1] * instance.op_count
    for op in instance.order:
        depth[op] += instance.longest[op] > 0
        for target, _ in instance.successors[op]:
            if depth[op] > depth[target]:
                depth[target], before[target] = depth[op], op
    working = instance.working_count
    if max(depth, default=0) < working or working * instance.device_count**2 > _MOST_CROSSINGS:
        return []
    op = depth.index(working) if working else -1
    path = []
    while op >= 0:
        path.append(op)
        op = before[op]
    return path[::-1]


def _work(instance: Instance) -> Ints:
    return np.array([np.sum([instance.duration[op] for op in ops], axis=0) for ops in instance.members], np.int64)
