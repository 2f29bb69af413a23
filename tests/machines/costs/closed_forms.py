"""Closed forms of the α-β model: what rounds must cost where all pairs of devices are joined alike.

A device sends one message and receives one at a time. The forms are the literature's; "Thakur" and "Patarasuk" as in
`dlplacer.machines.costs.collectives`.
"""

from collections.abc import Callable

from dlplacer.machines.costs.collectives import (
    AlphaBeta,
    ceil_log2,
    ring_all_reduce,
    ring_pass,
)


def tree_all_reduce(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """2 ⌈log₂ N⌉ messages of the whole vector: binomial reduce, then broadcast (Thakur, sections 4.1 and 4.5)."""
    return channel.times(2 * ceil_log2(devices))


def hierarchical_all_reduce(inner: AlphaBeta, outer: AlphaBeta, islands: int, size: int) -> AlphaBeta:
    """The line of `hierarchical_rounds` where islands of `size` devices are joined by `inner`, and by `outer`.

    The devices of an island exchange their parts with the other islands side by side, each over a channel of its own:
    where they share one, `outer` is its rate divided by the size of the island.
    """
    across = ring_all_reduce(outer, islands)
    return ring_all_reduce(inner, size) + AlphaBeta(across.latency_s, across.s_per_byte / size)


CLOSED_FORMS: dict[tuple[str, str], Callable[[AlphaBeta, int], AlphaBeta]] = {
    ("all-reduce", "ring"): ring_all_reduce,
    ("all-reduce", "tree"): tree_all_reduce,
    ("all-gather", "ring"): ring_pass,
    ("reduce-scatter", "ring"): ring_pass,
    ("all-to-all", "pairwise"): ring_pass,
}
"""(Collective, algorithm) → (line of one message between two devices, N) → its line."""
