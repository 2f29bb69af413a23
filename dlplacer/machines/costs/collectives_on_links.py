"""What collectives cost on the devices of a real machine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta
from dlplacer.machines.costs.collective_rounds import (
    Round,
    all_to_all_rounds,
    doubling_gather_rounds,
    halving_doubling_rounds,
    hierarchical_rounds,
    ring_half,
    server_rounds,
    tree_rounds,
)
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
        What part of the whole vector each group holds; they add up to 1.
    islands
        The first group's places, parted into sets of equal size that are joined better inside than outside; with fewer
        than two sets, or sets of one, there is no hierarchical algorithm.
    """

    wiring: Wiring
    groups: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = (1.0,)
    islands: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.groups or len({len(group) for group in self.groups}) != 1 or not self.groups[0]:
            raise InputError("collective costs: groups must be of one size, of at least one device each")
        if len(self.shares) != len(self.groups) or abs(sum(self.shares) - 1) > 1e-9 or min(self.shares) < 0:
            raise InputError(f"collective costs: shares {self.shares} must be one per group and add up to 1")

    @property
    def devices(self) -> int:
        """How many devices a group has."""
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

    @cached_property
    def ring_half(self) -> AlphaBeta:
        """Reduce-scatter or all-gather: over one ring per group, or over several where one group has the machine."""
        if self.devices == 1:
            return FREE
        plain = self.rounds(ring_half(self.devices))
        if len(self.groups) > 1:
            return plain
        found = rings(self.wiring, self.groups[0])
        steps, rate = self.devices - 1, sum(ring.bytes_per_s for ring in found)
        return AlphaBeta(steps * max(ring.latency_s for ring in found), steps / self.devices / rate)

    @cached_property
    def all_reduces(self) -> Mapping[str, AlphaBeta]:
        """Algorithm → line."""
        return dict(self._all_reduces())

    def _all_reduces(self) -> Iterator[tuple[str, AlphaBeta]]:
        yield "ring", self.ring_half + self.ring_half
        yield "tree", self.rounds(tree_rounds(self.devices))
        yield "halving-doubling", self.rounds(halving_doubling_rounds(self.devices))
        if len(self.islands) > 1 and len(self.islands[0]) > 1:
            yield "hierarchical", self.rounds(hierarchical_rounds(self.islands))

    def all_reduce(self, size_bytes: float) -> tuple[str, AlphaBeta]:
        """The algorithm that is fastest for a vector of this size, and its line."""
        name = min(self.all_reduces, key=lambda each: self.all_reduces[each].time_s(size_bytes))
        return name, self.all_reduces[name]

    @cached_property
    def all_to_all(self) -> AlphaBeta:
        """In pairs, each device to every other."""
        return self.rounds(all_to_all_rounds(self.devices))

    @cached_property
    def doubling_gather(self) -> AlphaBeta:
        """All-gather by Bruck's algorithm."""
        return self.rounds(doubling_gather_rounds(self.devices))

    def served(self, servers: Sequence[str]) -> CollectiveCosts:
        """Push to parameter servers, and pull from them; the servers are devices beside the groups.

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
        turns = server_rounds(self.devices, len(servers))
        line = whole.rounds(turns[: len(turns) // 2])
        return {"push": line, "pull": line}

    def collectives(self, size_bytes: float) -> CollectiveCosts:
        """Every collective by its fastest algorithm for a vector of this size."""
        gather = min((self.ring_half, self.doubling_gather), key=lambda line: line.time_s(size_bytes))
        return {
            "all-reduce": self.all_reduce(size_bytes)[1],
            "all-gather": gather,
            "reduce-scatter": self.ring_half,
            "all-to-all": self.all_to_all,
        }


def server_line(wiring: Wiring, workers: Sequence[str], servers: Sequence[str]) -> AlphaBeta:
    """Push to parameter servers and pull back, over the links of a machine; servers are devices that do nothing else.

    Raises
    ------
    InputError
        If a device is both worker and server.
    """
    lines = MachineCosts(wiring, (tuple(workers),)).served(servers)
    return lines["push"] + lines["pull"]
