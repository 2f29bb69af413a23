"""A parameter server's pull as a chain of layers, and the speedup of many nodes that pull before they compute.

The cluster of the paper: virtual nodes on blades, whose network cards they share; servers hold even shares of the
parameters on the same blades. Nodes pull at the same time, so a layer takes what all of them need from other blades.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dlplacer.data_parallel.groups import LayerChain, makespan_s


@dataclass(frozen=True)
class Blades:
    """Machines with one network card each, which carries so many bytes per second in each direction."""

    count: int
    bytes_per_s: float
    startup_s: float

    def pull_s(self, size_bytes: float, nodes: int) -> float:
        """Seconds until every node has so many bytes, which lie evenly on all nodes' blades."""
        used = min(self.count, nodes)
        return nodes / used * size_bytes * (1 - 1 / used) / self.bytes_per_s

    def chain(self, layers: LayerChain, nodes: int) -> LayerChain:
        """The forward pass of every node: layers with their bytes and computation, and the pull of this cluster."""
        transfers_s = tuple(self.pull_s(size, nodes) for size in layers.bytes)
        return replace(layers, startup_s=self.startup_s, transfer_s=transfers_s)


def speedup(layers: LayerChain, blades: Blades, nodes: int, cuts: Sequence[int]) -> float:
    """Throughput of so many nodes over one: pull and forward pass in these groups, backward pass, push at the end.

    The backward pass takes twice as long as the forward pass; what is pushed takes as long as what is pulled.
    """
    forward_s = sum(layers.compute_s)
    chain = blades.chain(layers, nodes)
    push_s = blades.startup_s + sum(chain.transfer_s)
    return nodes * 3 * forward_s / (makespan_s(chain, cuts) + 2 * forward_s + push_s)


def best_of_count(chain: LayerChain, groups: int) -> tuple[int, ...]:
    """The groups of least makespan among all of so many; every choice is tried."""
    last = chain.layer_count
    choices = ((*cuts, last) for cuts in combinations(range(1, last), groups - 1))
    return min(choices, key=lambda cuts: makespan_s(chain, cuts))
