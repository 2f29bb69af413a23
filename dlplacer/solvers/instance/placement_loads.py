"""Loads decided by a placement alone: of devices and link directions in steady state, or the length of a path.

A load is a sum over blocks and over the transfers between their devices, by routes of least delay.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.options import OBJECTIVES
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import transfer_requests
from dlplacer.problem.routes import Hop, link_directions, link_holds, segments
from dlplacer.problem.ticks import exact, ticks
from dlplacer.solvers.instance.instance import FAR, Delay, Instance

Ints = NDArray[np.int64]

_MOST_CROSSINGS = 50_000
"""Ops × device pairs up to which a path is searched for. A guess."""


class PlacementLoads(NamedTuple):
    """The loads of all placements, in ticks rounded down.

    Attributes
    ----------
    number, load_of
        Number of loads, and [device] → the load to which its ops and transfers add.
    work
        [block, device] → ticks of its ops.
    requests
        (sending block, reading blocks, row of `sent` and `received`).
    sent, received
        [row, sender, receiver] → ticks that a transfer adds at either end; `FAR` if no route joins the devices.
    on_links
        (row, sender, receiver) → (load, ticks) for each link direction that a transfer uses.
    """

    number: int
    load_of: Sequence[int]
    work: Ints
    requests: Sequence[tuple[int, tuple[int, ...], int]]
    sent: Ints
    received: Ints
    on_links: Mapping[tuple[int, int, int], Sequence[tuple[int, int]]]

    def of(self, place: Sequence[int]) -> list[int]:
        """Ticks of every load under a placement [block] → device."""
        busy = [0] * self.number
        for here, work in zip(place, self.work.tolist(), strict=True):
            busy[self.load_of[here]] += work[here]
        for source, readers, row in self.requests:
            here, longest = place[source], 0
            for there in {place[reader] for reader in readers} - {here}:
                longest = max(longest, int(self.sent[row, here, there]))
                busy[self.load_of[there]] += int(self.received[row, here, there])
                for number, added in self.on_links[row, here, there]:
                    busy[number] += added
            busy[self.load_of[here]] += longest
        return busy


def loads_of(problem: Problem, instance: Instance) -> PlacementLoads:
    """The loads of devices and link directions under all placements, tabulated once."""
    if loads_of not in problem.derived:
        problem.derived[loads_of] = _build(problem, instance)
    return problem.derived[loads_of]  # type: ignore[no-any-return]


def _build(problem: Problem, instance: Instance) -> PlacementLoads:
    devices, options = problem.topology.devices, problem.options
    table = [[[FAR if ticks is None else ticks for ticks in row] for row in rows] for rows in problem.delay]
    delay = np.array(table, np.int64).reshape(-1, len(devices), len(devices))
    pays = np.array([OBJECTIVES[options.objective].ends_pay and device.asynchronous for device in devices], np.int64)
    sent, received = (np.where(delay < FAR, delay * paid, FAR) for paid in (pays[:, None], pays))
    requests = []
    for request in transfer_requests(problem):
        source = instance.block[request.source]
        readers = tuple(sorted({instance.block[reader] for reader in request.readers} - {source}))
        if readers:
            requests.append((source, readers, request.size))
    directions = link_directions(problem.topology) if options.contention == "link" else ()
    load_of = {direction: number for number, direction in enumerate(directions, len(devices))}
    names = [device.id for device in devices]
    on_links: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for size, a, b in product(range(len(problem.sizes_bytes)), range(len(names)), range(len(names))):
        on_links[size, a, b] = []
        if load_of and a != b and delay[size, a, b] < FAR:
            on_links[size, a, b] = _on_links(problem, size, (names[a], names[b]), load_of)
    count = len(devices) + len(load_of)
    return PlacementLoads(count, range(len(devices)), _work(instance), requests, sent, received, on_links)


def _on_links(problem: Problem, size: int, pair: Hop, load_of: Mapping[Hop, int]) -> list[tuple[int, int]]:
    topology, size_bytes, found = problem.topology, problem.sizes_bytes[size], list[tuple[int, int]]()
    for route in segments(topology, problem.routes[size][pair]):
        held = link_holds(topology, pairwise(route), size_bytes, problem.options.delay, exact)
        found += [(load_of[name], ticks(end_s - begin_s, problem.tick_s)) for name, begin_s, end_s in held]
    return found


def path_length(instance: Instance, path: Sequence[int]) -> PlacementLoads:
    """The loads of all placements, if the only load is the length of a path."""
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
    """A path through all ops that take time; empty if there is none or it is too long."""
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
