"""Contiguous splits of a chain of ops over devices: their costs, and the best split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.links import Wiring
from dlplacer.machines.costs.roofline_times import required_time_s
from dlplacer.solvers.heuristics.contiguous import Floats, alike_devices, best_runs, runs_within, set_count

_MOST_STATES = 20_000
"""Largest number of sets of devices in the dynamic program."""


@dataclass(frozen=True, eq=False)
class ChainCosts:
    """A chain of ops, the devices, and the costs of every op on every device.

    `time_s`: [op][device] → seconds; infinite if the op may not run there. `sizes`: [op] → bytes that the op keeps.
    `capacities`: [device] → bytes; infinite for unlimited memory. `crossing_s`: [cut][from][to] → seconds to send the
    tensor from op ``cut − 1`` to op ``cut``. `embedding`: Number of the op whose weights the last op shares.
    `shared_bytes`: Bytes of these weights, kept once if both ops are on one device. `groups`: Batches in flight.
    """

    ops: tuple[Op, ...]
    devices: tuple[Device, ...]
    time_s: Floats
    sizes: Floats
    capacities: Floats
    crossing_s: Floats
    embedding: int = 0
    shared_bytes: float = 0.0
    groups: float = math.inf

    def loads_s(self, placement: Sequence[int]) -> tuple[Floats, Floats]:
        """[device] → seconds of its ops, and [cut] → seconds of each crossing."""
        busy = np.zeros(len(self.devices))
        np.add.at(busy, list(placement), self.time_s[np.arange(len(placement)), list(placement)])
        cuts = range(1, len(placement))
        return busy, np.array([self.crossing_s[cut, placement[cut - 1], placement[cut]] for cut in cuts])

    def held_bytes(self, placement: Sequence[int]) -> Floats:
        """[device] → bytes of its ops."""
        held = np.zeros(len(self.devices))
        np.add.at(held, list(placement), self.sizes)
        if placement[self.embedding] == placement[-1]:
            held[placement[-1]] -= self.shared_bytes
        return held

    def fits(self, placement: Sequence[int]) -> bool:
        """True if every device may run its ops and has the memory for them."""
        allowed = np.isfinite(self.time_s[np.arange(len(placement)), list(placement)]).all()
        return bool(allowed and (self.held_bytes(placement) <= self.capacities).all())

    def value_s(self, placement: Sequence[int], largest: bool = False) -> float:
        """Seconds of all ops and crossings in series; with `largest`, seconds per batch in steady state.

        In steady state the value is the largest load or, if longer, the latency of a batch ÷ the batches in flight.
        """
        busy, crossings = self.loads_s(placement)
        way_s = float(busy.sum() + crossings.sum())
        return max(busy.max(), crossings.max(initial=0.0), way_s / self.groups) if largest else way_s

    def quickest(self, largest: bool, known: Sequence[int] | None = None) -> list[int] | None:
        """The quickest of `known`, the split of least sum and, if `largest`, that of least load; None if none fits."""
        found = [self.best_split(each) for each in {False, largest}]
        found += [None if known is None or not self.fits(known) else [*known]]
        return min((each for each in found if each), key=lambda each: self.value_s(each, largest), default=None)

    @cached_property
    def classes(self) -> list[list[int]]:
        """Groups of interchangeable devices."""
        return alike_devices(self.capacities.tolist(), self.time_s, self.crossing_s)

    def best_split(self, largest: bool = False) -> list[int] | None:
        """[op] → device: the best split with one run of ops per device; None if no split fits.

        `largest`: Minimize the largest load instead of the sum.
        """
        if set_count(self.classes) > _MOST_STATES:
            raise InputError(
                f"{len(self.devices)} devices of {len(self.classes)} kinds are too many to try all their sets; leave "
                "out some"
            )
        ahead = np.concatenate([[0.0], np.cumsum(self.sizes)])
        held = ahead[None, :] - ahead[:, None]
        held[: self.embedding + 1, -1] -= self.shared_bytes
        runs = [runs_within(self.time_s[:, group[0]], held, self.capacities[group[0]]) for group in self.classes]
        found = best_runs(self.classes, runs, self.crossing_s, np.maximum if largest else np.add)
        return None if found is None else [device for device, first, last in found for _ in range(first, last)]


def chain_of(graph: OpGraph, topology: Topology) -> ChainCosts:
    """The chain of a graph whose ops form one path, with the costs of the ops on a machine."""
    order = [graph.op(name) for name in graph.topological_order]
    if [(edge.source, edge.target) for edge in graph.edges] != [(one.id, other.id) for one, other in pairwise(order)]:
        raise InputError(f"graph {graph.name!r} is not a chain of layers; `dlplacer fit` makes one")
    wiring, devices = Wiring(topology), topology.devices
    time_s = np.full((len(order), len(devices)), np.inf)
    for number, op in enumerate(order):
        for place, device in enumerate(devices):
            if op.devices is None or device.id in op.devices or device.type in op.devices:
                time_s[number, place] = required_time_s(op, device.type)
    lines = [[wiring.channel(one.id, other.id) for other in devices] for one in devices]
    latency_s = np.array([[line.latency_s for line in row] for row in lines])
    s_per_byte = np.array([[line.s_per_byte for line in row] for row in lines])
    crossing_s = np.zeros((len(order) + 1, len(devices), len(devices)))
    for cut, edge in enumerate(graph.edges, start=1):
        crossing_s[cut] = latency_s + s_per_byte * edge.bytes
    rooms = [math.inf if device.memory_bytes is None else device.memory_bytes for device in devices]
    shared = order[-1].meta.get("shared_bytes", 0)
    sizes = np.array([float(op.footprint_bytes) for op in order])
    sizes[-1] += shared
    embedding = next((number for number, op in enumerate(order) if op.kind == "embedding"), 0)
    return ChainCosts(tuple(order), devices, time_s, sizes, np.array(rooms, dtype=float), crossing_s, embedding, shared)
