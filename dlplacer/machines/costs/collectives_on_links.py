"""Costs of collectives on the devices of a real machine."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta
from dlplacer.machines.costs.collectives import (
    ALGORITHMS,
    GLOO,
    NCCL,
    CollectiveAlgorithm,
    Round,
    hierarchical_rounds,
    push_rounds,
    ring_pass_rounds,
)
from dlplacer.machines.costs.device_table import is_core
from dlplacer.machines.costs.gradient_exchange import CollectiveCosts
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.machines.costs.rings import rings


@dataclass(frozen=True)
class MachineCosts:
    """Collectives among groups of devices that communicate at the same time.

    Plain data parallelism is one group that holds the whole gradient. A worker of M devices gives M groups: the first
    devices of all workers exchange the gradients that they hold, the second devices theirs, and so on.

    Attributes
    ----------
    groups
        Devices of each group in order; all have the same number.
    shares
        The share of the whole vector that each group holds; the shares add up to 1.
    islands
        The first group's ranks, parted into sets of equal size that are joined better inside than outside; with fewer
        than two sets, or sets of one, there is no hierarchical algorithm.
    factors
        Collective → its measured seconds ÷ those that the links promise, with every algorithm.
    """

    wiring: Wiring
    groups: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = (1.0,)
    islands: tuple[tuple[int, ...], ...] = ()
    factors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.groups or len({len(group) for group in self.groups}) != 1 or not self.groups[0]:
            raise InputError("collective costs: groups must be of one size, of at least one device each")
        if len(self.shares) != len(self.groups) or abs(sum(self.shares) - 1) > 1e-9 or min(self.shares) < 0:
            raise InputError(f"collective costs: shares {self.shares} must be one per group and add up to 1")

    @property
    def devices(self) -> int:
        """The number of devices in a group."""
        return len(self.groups[0])

    def rounds(self, rounds: Sequence[Round]) -> AlphaBeta:
        """The line of rounds that all groups do at the same time, over the bytes of the whole vector."""
        total = FREE
        for each in rounds:
            messages = (
                (group[a], group[b], held * share)
                for group, held in zip(self.groups, self.shares, strict=True)
                for a, b, share in each.steps
            )
            total += self.wiring.round(messages).times(each.times)
        return total

    def line(self, algorithm: CollectiveAlgorithm) -> AlphaBeta:
        """The line of an algorithm, even if the library of these devices lacks it."""
        if algorithm.ring_passes:
            return self.ring_pass.times(algorithm.ring_passes)
        return self.rounds(algorithm.rounds(self.devices))

    @cached_property
    def ring_pass(self) -> AlphaBeta:
        """Once around: over one ring per group, or over several where one group has the machine to itself."""
        if self.devices == 1:
            return FREE
        # Groups that run at the same time share links, which the search for rings of one group does not see.
        plain = self.rounds(ring_pass_rounds(self.devices))
        if len(self.groups) > 1:
            return plain
        found = rings(self.wiring, self.groups[0])
        steps, rate = self.devices - 1, sum(ring.bytes_per_s for ring in found)
        return AlphaBeta(steps * max(ring.latency_s for ring in found), steps / self.devices / rate)

    @cached_property
    def algorithms(self) -> Mapping[str, Mapping[str, AlphaBeta]]:
        """Collective → algorithm → line, for the algorithms that the library of these devices has.

        The hierarchical all-reduce is composed of rings inside and across islands, which every library has.
        """
        library = library_of(self.wiring.topology)
        found: dict[str, dict[str, AlphaBeta]] = defaultdict(dict)
        for algorithm in ALGORITHMS:
            if library in algorithm.libraries:
                found[algorithm.collective][algorithm.name] = self.line(algorithm)
        if len(self.islands) > 1 and len(self.islands[0]) > 1:
            found["all-reduce"]["hierarchical"] = self.rounds(hierarchical_rounds(self.islands))
        return {
            collective: {name: line.times(self.factors.get(collective, 1.0)) for name, line in lines.items()}
            for collective, lines in found.items()
        }

    def collectives(self, size_bytes: float) -> CollectiveCosts:
        """Every collective by its fastest algorithm for a vector of this size."""
        return {
            collective: min(lines.values(), key=lambda line: line.time_s(size_bytes))
            for collective, lines in self.algorithms.items()
        }

    def served(self, servers: Sequence[str]) -> CollectiveCosts:
        """Push to parameter servers, and pull from them; the servers are devices outside the groups.

        A pull is the push with all messages turned round, over the same links, and takes as long.

        Raises
        ------
        InputError
            If a device is both worker and server, or there is no server.
        """
        workers = {name for group in self.groups for name in group}
        both = sorted(workers.intersection(servers))
        if both:
            raise InputError(f"device {both[0]!r} is both worker and parameter server; give it one role")
        whole = replace(self, groups=tuple((*group, *servers) for group in self.groups), islands=())
        line = whole.rounds(push_rounds(self.devices, len(servers)))
        return {"push": line, "pull": line}


def library_of(topology: Topology) -> str:
    """The library of torch's process groups on these devices: gloo where all are CPU cores, else NCCL."""
    return GLOO if all(map(is_core, topology.devices)) else NCCL
