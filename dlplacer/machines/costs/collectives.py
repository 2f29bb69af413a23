"""Algorithms of collectives as rounds of messages, and the ring's closed form in the α-β model.

A new algorithm needs its rounds and a row in `ALGORITHMS`, which `hybrid`, `groups` and the tests read. The module
`dlplacer.machines.costs.links` routes the messages of a round over the links of a machine.

Bytes are those of the full vector: the input of an all-reduce or reduce-scatter, the output of an all-gather, and the
data that one device sends in an all-to-all, its own part included. Reductions themselves cost nothing.

Sources: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH, 2005
("Thakur"); P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009
("Patarasuk"). Pal et al. 2019 cite both on all-reduce.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Seconds that are linear in the bytes: α + β · bytes.

    The cost of a link, of a route and of a collective over many devices all have this form. For a collective the bytes
    are those of the whole vector on one device.
    """

    latency_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        for value in (self.latency_s, self.s_per_byte):
            if not 0 <= value <= sys.float_info.max:
                raise InputError(f"alpha beta: a time is {value}; it must be finite and at least 0")

    def time_s(self, size_bytes: float) -> float:
        """Seconds for this many bytes."""
        if not 0 <= size_bytes <= sys.float_info.max:
            raise InputError(f"a message of {size_bytes} bytes; the size must be finite and at least 0")
        return self.latency_s + self.s_per_byte * size_bytes

    def times(self, rounds: float, share: float = 1.0) -> "AlphaBeta":
        """The cost of `rounds` messages in series, each with this share of the bytes."""
        return AlphaBeta(rounds * self.latency_s, rounds * share * self.s_per_byte)

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        """The cost of both in series, each for the same bytes."""
        return AlphaBeta(self.latency_s + other.latency_s, self.s_per_byte + other.s_per_byte)


FREE = AlphaBeta(0.0, 0.0)
"""The cost of no communication."""


Message = tuple[int, int, float]
"""Rank of the sender, rank of the receiver, share of the full vector."""

NCCL, GLOO = LIBRARIES = ("nccl", "gloo")
"""Communication libraries; torch's process groups use NCCL on GPUs and gloo on CPUs."""


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that start together, and the number of consecutive rounds that load the links alike.

    A round starts when all messages of the previous round have arrived.
    """

    steps: tuple[Message, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class CollectiveAlgorithm:
    """An algorithm of a collective over N devices.

    `ring_passes`: The number of times that parts of the vector go around a ring; 0 without a ring. On a machine the
    ring visits the devices in the widest order, not by rank.
    """

    collective: str
    name: str
    rounds: Callable[[int], tuple[Round, ...]]
    libraries: tuple[str, ...] = LIBRARIES
    ring_passes: int = 0


def ring_pass_rounds(devices: int) -> tuple[Round, ...]:
    """Reduce-scatter, or all-gather, around a ring: N − 1 times every device sends 1/N of the vector to the next."""
    if devices == 1:
        return ()
    return (Round(tuple((i, (i + 1) % devices, 1 / devices) for i in range(devices)), devices - 1),)


def ring_pass(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """The cost of N − 1 messages of 1/N of the vector (Thakur, sections 4.1 and 4.2)."""
    return channel.times(devices - 1, 1 / devices)


def ring_all_reduce(channel: AlphaBeta, devices: int) -> AlphaBeta:
    """The cost of 2 (N − 1) messages of 1/N of the vector (Patarasuk, section 3)."""
    return ring_pass(channel, devices).times(2)


def tree_rounds(devices: int) -> tuple[Round, ...]:
    """All-reduce over a binomial tree: sums go up to device 0, the result comes down."""
    up = [
        tuple((i, i - width, 1.0) for i in range(width, devices, 2 * width))
        for width in (1 << level for level in range(ceil_log2(devices)))
    ]
    down = [tuple((parent, child, share) for child, parent, share in steps) for steps in reversed(up)]
    return tuple(Round(steps) for steps in (*up, *down))


def pairwise_rounds(devices: int) -> tuple[Round, ...]:
    """All-to-all in pairs: in round s every device sends to the device s ranks later.

    Round N − s uses the routes of round s in the opposite direction, so both are one entry that counts twice.
    """
    half = devices // 2
    times = {shift: 1 if 2 * shift == devices else 2 for shift in range(1, half + 1)}
    return tuple(
        Round(tuple((i, (i + shift) % devices, 1 / devices) for i in range(devices)), count)
        for shift, count in times.items()
    )


# Libraries: NCCL's src/device and NCCL_ALGO list rings and trees, but neither recursive halving nor Bruck; torch's gloo
# process group calls gloo::allreduce, whose default is the ring. NCCL's tree is double and pipelined, so the binomial
# tree here is an upper bound for large vectors.
ALGORITHMS: tuple[CollectiveAlgorithm, ...] = (
    CollectiveAlgorithm("all-reduce", "ring", lambda devices: ring_pass_rounds(devices) * 2, ring_passes=2),
    CollectiveAlgorithm("all-reduce", "tree", tree_rounds, (NCCL,)),
    CollectiveAlgorithm("all-gather", "ring", ring_pass_rounds, ring_passes=1),
    CollectiveAlgorithm("reduce-scatter", "ring", ring_pass_rounds, ring_passes=1),
    CollectiveAlgorithm("all-to-all", "pairwise", pairwise_rounds),
)
"""The algorithms whose rounds depend only on the number of devices."""


def hierarchical_rounds(islands: Sequence[Sequence[int]]) -> tuple[Round, ...]:
    """All-reduce by rings: reduce-scatter in each island, all-reduce of each part across islands, all-gather in each.

    `islands`: Ranks of each island; all have the same size.
    """
    size, count = len(islands[0]), len(islands)
    inside = tuple(Round(_over(islands, once.steps, 1.0), once.times) for once in ring_pass_rounds(size))
    columns = [[island[part] for island in islands] for part in range(size)]
    across = tuple(Round(_over(columns, once.steps, 1 / size), once.times) for once in ring_pass_rounds(count) * 2)
    return inside + across + inside


def _over(groups: Sequence[Sequence[int]], steps: Sequence[Message], scale: float) -> tuple[Message, ...]:
    return tuple((group[a], group[b], scale * share) for group in groups for a, b, share in steps)


def ceil_log2(count: int) -> int:
    """⌈log₂ count⌉ for a count of at least 1."""
    return (count - 1).bit_length()
