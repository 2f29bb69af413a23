"""Policies that group layers: those in use, those that the paper proposes, and the optimum."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.groups.ddp_buckets import Gradient, built_buckets
from dlplacer.data_parallel.groups.exact_groups import best_groups
from dlplacer.data_parallel.groups.greedy_groups import greedy_back, greedy_front
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.data_parallel.groups.message_timeline import makespan_s

DEFAULT_CAPS_BYTES = (2**20, 25 * 2**20)
"""Of the first message and of all others: the defaults of torch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A policy's groups and how long the pass takes with them, in seconds."""

    policy: str
    cuts: tuple[int, ...]
    makespan_s: float


def per_layer(chain: LayerChain) -> tuple[int, ...]:
    """Every layer in a message of its own."""
    return tuple(range(1, chain.layer_count + 1))


def single_group(chain: LayerChain) -> tuple[int, ...]:
    """All layers in one message: no overlap."""
    return (chain.layer_count,)


def every(chain: LayerChain, size: int) -> tuple[int, ...]:
    """Groups of `size` layers, the last one smaller where they do not divide.

    Raises
    ------
    InputError
        If the size is below 1.
    """
    if size < 1:
        raise InputError(f"groups of {size} layers; a group has at least 1")
    return (*range(size, chain.layer_count, size), chain.layer_count)


def best_fixed_size(chain: LayerChain) -> tuple[int, ...]:
    """The best of `every` over all sizes: the tuned knob that the optimum has to beat."""
    return min(
        (every(chain, size) for size in range(1, chain.layer_count + 1)), key=lambda cuts: makespan_s(chain, cuts)
    )


def by_bytes(chain: LayerChain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Groups as DistributedDataParallel makes them: filled from the last layer on until they reach the cap.

    Parameters
    ----------
    cap_bytes
        None: DDP's defaults, 1 MiB for the first message and 25 MiB for the others.

    Raises
    ------
    InputError
        If the chain does not know its layers' bytes.
    """
    if not chain.bytes:
        raise InputError("groups by bytes need the bytes of every layer; give LayerChain(bytes=...)")
    caps = DEFAULT_CAPS_BYTES if cap_bytes is None else (cap_bytes,)
    gradients = [Gradient(str(layer), chain.bytes[layer - 1]) for layer in range(chain.layer_count, 0, -1)]
    return tuple(reversed([int(bucket.names[0]) for bucket in built_buckets(gradients, caps)]))


POLICIES: Mapping[str, Callable[[LayerChain], tuple[int, ...]]] = {
    "per-layer": per_layer,
    "single": single_group,
    "fixed-size": best_fixed_size,
    "greedy-front": greedy_front,
    "greedy-back": greedy_back,
    "optimal": best_groups,
}


def compare_groupings(
    chain: LayerChain, direction: str = "forward", cap_bytes: int | None = None
) -> tuple[Grouping, ...]:
    """Every policy's groups and makespan; the optimum comes last.

    With a cap, ``optimal`` keeps to it and the other policies do not. Where the layers' bytes are known, the default
    groups of torch's DistributedDataParallel are compared too.
    """
    chosen = {name: policy(chain) for name, policy in POLICIES.items() if name != "optimal"}
    if chain.bytes:
        chosen["by-bytes"] = by_bytes(chain)
    chosen["optimal"] = best_groups(chain, cap_bytes)
    return tuple(Grouping(name, cuts, makespan_s(chain, cuts, direction)) for name, cuts in chosen.items())
