"""Loads of devices and link directions in steady state, whose largest objective throughput minimises.

Every step has the same ops and transfers, so the order within a step plays no part in them. Tensors take the routes of
least delay that `dlplacer.problem.routes` tabulates.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import fsum

from dlplacer.core.options import OBJECTIVES
from dlplacer.core.plan import ScheduledOp, Transfer
from dlplacer.core.units import exact, ticks
from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import TransferRequest, transfer_requests
from dlplacer.problem.routes import link_directions, link_holds, segments

APART = 2**40
"""More ticks than any load of a plan."""


class Loads:
    """The terms of all loads in ticks, rounded down, and the period of a placement.

    Attributes
    ----------
    requests
        Everything that is sent if its readers are elsewhere.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._links: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self.requests: tuple[TransferRequest, ...] = transfer_requests(problem)
        ends_pay = OBJECTIVES[problem.options.objective].ends_pay
        self._pays = [ends_pay and device.asynchronous for device in problem.topology.devices]
        directions = link_directions(problem.topology) if problem.options.contention == "link" else ()
        self._numbers = {direction: number for number, direction in enumerate(directions)}

    @property
    def link_count(self) -> int:
        """Number of link directions that carry one transfer at a time."""
        return len(self._numbers)

    def on_links(self, size: int, source: int, target: int) -> list[tuple[int, int]]:
        """(link direction, ticks) for a tensor sent from a device to another."""
        key = size, source, target
        if key not in self._links:
            joined = self._problem.delay[size][source][target] is not None
            self._links[key] = list(self._timed(*key)) if self._numbers and joined else []
        return self._links[key]

    def paid(self, size: int, source: int, target: int) -> tuple[int, int]:
        """Ticks that sender and receiver pay for a transfer; `APART` where no route joins them."""
        delay = self._problem.delay[size][source][target]
        if delay is None:
            return APART, APART
        return delay * self._pays[source], delay * self._pays[target]

    def of(self, device: Sequence[int]) -> list[int]:
        """Ticks of every device, then of every link direction, under a placement [op] → device."""
        problem = self._problem
        busy = [0] * (problem.device_count + self.link_count)
        for op, here in enumerate(device):
            busy[here] += problem.duration[op][here] or 0
        for request in self.requests:
            here, sent = device[request.source], 0
            for there in {device[reader] for reader in request.readers} - {here}:
                paid, received = self.paid(request.size, here, there)
                busy[there] += received
                sent = max(sent, paid)
                for number, time in self.on_links(request.size, here, there):
                    busy[problem.device_count + number] += time
            busy[here] += sent
        return busy

    def _timed(self, size: int, source: int, target: int) -> list[tuple[int, int]]:
        problem, found = self._problem, list[tuple[int, int]]()
        topology, names = problem.topology, problem.topology.devices
        for route in segments(topology, problem.routes[size][names[source].id, names[target].id]):
            held = link_holds(topology, pairwise(route), problem.sizes_bytes[size], problem.options.delay, exact)
            found += [(self._numbers[name], ticks(end_s - begin_s, problem.tick_s)) for name, begin_s, end_s in held]
        return found


def period_s(problem: Problem, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> float:
    """The largest load in seconds of ops and transfers, each over its whole length."""
    busy: dict[object, list[float]] = defaultdict(list)
    for entry in ops:
        busy[entry.device].append(entry.end_s - entry.start_s)
    place = {entry.op: entry.device for entry in ops}
    topology, options = problem.topology, problem.options
    hosts = {device.id for device in topology.devices if not device.asynchronous}
    sent: dict[tuple[str, str | int], float] = {}
    for number, transfer in enumerate(transfers):
        paid_s = 0.0
        for segment in transfer.segments:
            held = link_holds(topology, segment.route, transfer.bytes, options.delay, float)
            paid_s += held[-1][2]
            for direction, begin_s, end_s in held:
                busy[direction].append((end_s - begin_s) if options.contention == "link" else 0.0)
        if OBJECTIVES[options.objective].ends_pay:
            busy[transfer.target].append(0.0 if transfer.target in hosts else paid_s)
            key = place[transfer.source], transfer.tensor if options.transfers == "device" else number
            sent[key] = max(paid_s, sent.get(key, 0.0))
    for (device, _), paid_s in sent.items():
        busy[device].append(0.0 if device in hosts else paid_s)
    return max(map(fsum, busy.values()))
