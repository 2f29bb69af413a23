"""Policies that group layers: common ones, and the optimum."""

from dataclasses import dataclass

from dlplacer.data_parallel.groups.ddp_buckets import Gradient, built_buckets
from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s

DEFAULT_CAPS_BYTES = (2**20, 25 * 2**20)
"""Caps of the first message and of all others, the defaults of torch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A policy's groups, and the time of the pass with them in seconds."""

    policy: str
    cuts: tuple[int, ...]
    makespan_s: float


def compare_groupings(
    chain: LayerChain, direction: str = "forward", cap_bytes: int | None = None
) -> tuple[Grouping, ...]:
    """Every policy's groups and makespan; the optimum comes last.

    ``fixed-size`` uses groups of k layers, with the best k: a tuned setting that the optimum has to beat. Only
    ``optimal`` respects a cap. If the layers' bytes are known, the comparison includes the default groups of torch's
    DistributedDataParallel.
    """
    count = chain.layer_count
    fixed = ((*range(size, count, size), count) for size in range(1, count + 1))
    chosen = {
        "per-layer": tuple(range(1, count + 1)),
        "single": (count,),
        "fixed-size": min(fixed, key=lambda cuts: makespan_s(chain, cuts, direction)),
    }
    if chain.bytes:
        chosen["by-bytes"] = _by_bytes(chain)
    chosen["optimal"] = best_groups(chain, cap_bytes)
    return tuple(Grouping(name, cuts, makespan_s(chain, cuts, direction)) for name, cuts in chosen.items())


def _by_bytes(chain: LayerChain) -> tuple[int, ...]:
    """The default groups of DistributedDataParallel, filled from the last layer on until they reach the cap."""
    gradients = [Gradient(str(layer), chain.bytes[layer - 1]) for layer in range(chain.layer_count, 0, -1)]
    return tuple(reversed([int(bucket.names[0]) for bucket in built_buckets(gradients, DEFAULT_CAPS_BYTES)]))
