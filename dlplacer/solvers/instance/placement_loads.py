"""Loads that a placement alone decides: of devices and link directions in steady state, or the length of a path.

A load is a sum over blocks and over what is sent between their devices.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.loads import Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import Delay, Instance

Ints = NDArray[np.int64]

_MOST_CROSSINGS = 50_000
"""Ops × pairs of devices up to which a path is looked for. A guess."""


class PlacementTables(NamedTuple):
    """The loads of all placements.

    Attributes
    ----------
    work, load_of
        [block, device] → ticks of its ops, and [device] → the load that they count for.
    allowed
        [block, device] → 1 or 0.
    size
        [block] → bytes.
    order, turn
        The blocks in the order in which they run, and [block] → its position there.
    source, kind
        [request] → the block that sends it, and the row of its prices.
    first_reader, reader
        `reader[first_reader[request] : first_reader[request + 1]]` are the blocks that read it, but for its source.
    first_at, at
        The same for [block] → requests that it sends or reads.
    sent, received
        [kind, device, device] → ticks that the ends pay.
    first_link, link, link_ticks
        The same for [kind × devices² + device × devices + device] → loads that a transfer adds to, and its ticks.
    """

    work: Ints
    load_of: Ints
    allowed: Ints
    size: Ints
    order: Ints
    turn: Ints
    source: Ints
    kind: Ints
    first_reader: Ints
    reader: Ints
    first_at: Ints
    at: Ints
    sent: Ints
    received: Ints
    first_link: Ints
    link: Ints
    link_ticks: Ints

    @property
    def load_count(self) -> int:
        """Number of loads."""
        return 1 + int(max(self.load_of.max(), self.link.max(initial=0)))

    def readers(self, request: int) -> list[int]:
        """The blocks that read a request."""
        found: list[int] = self.reader[self.first_reader[request] : self.first_reader[request + 1]].tolist()
        return found

    def on_links(self, kind: int, source: int, target: int) -> list[tuple[int, int]]:
        """(load, ticks) of what a transfer adds to."""
        row = (kind * len(self.load_of) + source) * len(self.load_of) + target
        span = slice(self.first_link[row], self.first_link[row + 1])
        return list(zip(self.link[span].tolist(), self.link_ticks[span].tolist(), strict=True))


def load_tables(problem: Problem, instance: Instance, loads: Loads) -> PlacementTables:
    """The loads of devices and link directions under all placements."""
    devices = instance.device_count
    kinds = range(len(problem.sizes_bytes))
    pairs = [(kind, a, b) for kind in kinds for a in range(devices) for b in range(devices)]
    paid = np.array([loads.paid(*pair) for pair in pairs], np.int64).reshape(len(kinds), devices, devices, 2)
    requests = []
    for request in loads.requests:
        source = instance.block[request.source]
        readers = sorted({instance.block[reader] for reader in request.readers} - {source})
        if readers:
            requests.append((source, readers, request.size))
    on_links = (() if a == b else loads.on_links(kind, a, b) for kind, a, b in pairs)
    return _tables(
        instance,
        [instance.block[op] for op in instance.order],
        range(devices),
        requests,
        paid,
        [[(devices + number, ticks) for number, ticks in row] for row in on_links],
    )


def path_tables(instance: Instance, path: Sequence[int]) -> PlacementTables:
    """The length of a path as the only load of all placements."""
    kinds: dict[Delay, int] = {}
    requests = []
    for op, behind in pairwise(path):
        if instance.block[op] != instance.block[behind]:
            delay = next(delay for target, delay in instance.successors[op] if target == behind)
            kind = kinds.setdefault(delay, len(kinds))
            requests.append((instance.block[op], [instance.block[behind]], kind))
    return _tables(
        instance,
        [*(instance.block[op] for op in path), *instance.block],
        [0] * instance.device_count,
        requests,
        np.zeros((len(kinds), instance.device_count, instance.device_count, 2), np.int64),
        [[(0, ticks)] for delay in kinds for row in delay for ticks in row],
    )


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


def _tables(
    instance: Instance,
    order: Iterable[int],
    load_of: Sequence[int],
    requests: Sequence[tuple[int, Sequence[int], int]],
    ends_pay: Ints,
    on_links: Sequence[Sequence[tuple[int, int]]],
) -> PlacementTables:
    """The tables from (block, readers, row of prices) of requests and, for each row and two devices, who pays."""
    work = np.zeros((len(instance.members), instance.device_count), np.int64)
    allowed = np.zeros(work.shape, np.int64)
    for block, ops in enumerate(instance.members):
        allowed[block, list(instance.allowed[ops[0]])] = 1
        work[block] = np.sum([instance.duration[op] for op in ops], axis=0)
    at = [list[int]() for _ in instance.members]
    for number, (source, readers, _) in enumerate(requests):
        for block in (source, *readers):
            at[block].append(number)
    first_link, link = _rows([[load for load, _ in row] for row in on_links])
    blocks = np.array(list(dict.fromkeys(order)), np.int64)
    return PlacementTables(
        work * (allowed > 0),
        np.array(load_of, np.int64),
        allowed,
        np.array(instance.footprint, np.int64),
        blocks,
        np.argsort(blocks),
        np.array([source for source, _, _ in requests], np.int64),
        np.array([kind for _, _, kind in requests], np.int64),
        *_rows([readers for _, readers, _ in requests]),
        *_rows(at),
        ends_pay[..., 0].copy(),
        ends_pay[..., 1].copy(),
        first_link,
        link,
        np.array([ticks for row in on_links for _, ticks in row], np.int64),
    )


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    first = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return first, np.array([value for row in rows for value in row], np.int64)
