"""Costs of collectives over devices that are all joined alike: closed forms of the α-β model.

Every function takes the line of one message between two devices and the number of devices, and returns the line of the
whole collective over the bytes of the full vector: what an all-reduce sums, an all-gather ends with, a reduce-scatter
starts from, and one device sends in an all-to-all (its own part included). A device sends one message and receives one
at a time. Reductions themselves cost nothing. `dlplacer.machines.costs.message_routes` gives the same for the links of
a real machine.

Sources: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH, 2005
("Thakur"); P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009
("Patarasuk"); both are cited by the paper for its ring all-reduce.
"""

from collections.abc import Callable, Mapping

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import FREE, AlphaBeta


def ring_all_reduce(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """2 (N − 1) messages of 1/N of the vector: reduce-scatter, then all-gather (Patarasuk, section 3)."""
    require_devices(devices)
    return channel.times(2 * (devices - 1), 1 / devices)


def tree_all_reduce(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """2 ⌈log₂ N⌉ messages of the whole vector: binomial reduce, then broadcast (Thakur, sections 4.1 and 4.5)."""
    require_devices(devices)
    return channel.times(2 * ceil_log2(devices))


def halving_doubling_all_reduce(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """2 log₂ N messages that halve and then double: 2 log₂ N α + 2 (N − 1)/N β bytes (Thakur, section 4.5).

    Where N is no power of two, the devices beyond the next lower one hand their vector to a partner first and get the
    sum back last: two messages of the whole vector more.
    """
    require_devices(devices)
    core = floor_power_of_two(devices)
    steps = 2 * ceil_log2(core)
    inner = AlphaBeta(steps * channel.latency_s, 2 * (core - 1) / core * channel.s_per_byte)
    return inner if core == devices else inner + channel.times(2)


def ring_reduce_scatter(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """N − 1 messages of 1/N of the vector: the first half of the ring all-reduce (Thakur, section 4.2)."""
    require_devices(devices)
    return channel.times(devices - 1, 1 / devices)


def ring_all_gather(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """N − 1 messages of 1/N of the vector: the second half of the ring all-reduce (Thakur, section 4.1)."""
    return ring_reduce_scatter(channel, devices)


def doubling_all_gather(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """⌈log₂ N⌉ messages that double, (N − 1)/N of the vector together: Bruck's algorithm (Thakur, section 4.1)."""
    require_devices(devices)
    return AlphaBeta(ceil_log2(devices) * channel.latency_s, (devices - 1) / devices * channel.s_per_byte)


def pairwise_all_to_all(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """N − 1 messages of 1/N of what a device holds, each to another partner (Thakur, section 4.4)."""
    return ring_reduce_scatter(channel, devices)


def parameter_server(channel: AlphaBeta, workers: int, servers: int) -> AlphaBeta:
    """Push of gradients and pull of weights over servers that each hold 1/S of them.

    Each way takes max(W, S) messages of 1/S of the vector: a server receives one message at a time, a worker sends one
    at a time. The servers are machines of their own. With W ≥ S and no latency this is 2 · S_p · N_w ÷ (N_ps · B_ps) of
    Lemma 3.2 in Zou et al., Distributed training large-scale deep architectures, 2017.

    Raises
    ------
    InputError
        If there are no workers or no servers.
    """
    require_devices(workers)
    if servers < 1:
        raise InputError(f"{servers} parameter servers; there must be at least 1")
    return channel.times(2 * max(workers, servers), 1 / servers)


def hierarchical_all_reduce(inner: AlphaBeta, outer: AlphaBeta, groups: int, group_size: int) -> AlphaBeta:
    """Reduce-scatter inside each group, all-reduce of each part across groups, all-gather inside.

    The devices of a group exchange their parts with the other groups side by side, each over a channel of its own:
    where they share one, `outer` is its rate divided by the size of the group. Both levels are rings.
    """
    require_devices(groups)
    require_devices(group_size)
    within = ring_reduce_scatter(inner, group_size) + ring_all_gather(inner, group_size)
    across = ring_all_reduce(outer, groups)
    return within + AlphaBeta(across.latency_s, across.s_per_byte / group_size)


ALL_REDUCE: Mapping[str, Callable[[AlphaBeta, int], AlphaBeta]] = {
    "ring": ring_all_reduce,
    "tree": tree_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
}
"""Algorithm of an all-reduce → its cost over equal channels."""


def best_all_reduce(channel: AlphaBeta, devices: int, size_bytes: float) -> tuple[str, AlphaBeta]:
    """The fastest algorithm of `ALL_REDUCE` for a vector of this size, and its line."""
    lines = {name: cost(channel, devices) for name, cost in ALL_REDUCE.items()}
    name = min(lines, key=lambda each: lines[each].time_s(size_bytes))
    return name, lines[name]


def ceil_log2(count: int) -> int:
    """⌈log₂ count⌉ of a count of at least 1."""
    return (count - 1).bit_length()


def floor_power_of_two(count: int) -> int:
    """The largest power of two that is at most this count of at least 1."""
    return 1 << (count.bit_length() - 1)


def require_devices(devices: int) -> None:
    """An InputError unless a collective can have this many devices."""
    if devices < 1:
        raise InputError(f"a collective over {devices} devices; there must be at least 1")


__all__ = [
    "ALL_REDUCE",
    "FREE",
    "AlphaBeta",
    "best_all_reduce",
    "ceil_log2",
    "doubling_all_gather",
    "floor_power_of_two",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "pairwise_all_to_all",
    "parameter_server",
    "require_devices",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "tree_all_reduce",
]
