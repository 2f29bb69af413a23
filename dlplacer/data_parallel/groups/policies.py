"""Policies that group layers: those in use, the two greedy algorithms of iBatch (section 4), and the optimum.

Open in the paper: ties on l1 leave l2 undetermined (here the smallest l2); no feasible next cut (here the rest goes
into one group); no feasible first pair (here everything goes into one group).
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.groups.ddp_buckets import Gradient, built_buckets
from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s

DEFAULT_CAPS_BYTES = (2**20, 25 * 2**20)
"""Of the first message and of all others: the defaults of torch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """A policy's groups, and the time of the pass with them in seconds."""

    policy: str
    cuts: tuple[int, ...]
    makespan_s: float


def per_layer(chain: LayerChain) -> tuple[int, ...]:
    """Every layer in a message of its own."""
    return tuple(range(1, chain.layer_count + 1))


def single_group(chain: LayerChain) -> tuple[int, ...]:
    """All layers in one message: no overlap."""
    return (chain.layer_count,)


def best_fixed_size(chain: LayerChain) -> tuple[int, ...]:
    """The best of groups of k layers each over all k: the tuned knob that the optimum has to beat."""
    count = chain.layer_count
    sizes = ((*range(size, count, size), count) for size in range(1, count + 1))
    return min(sizes, key=lambda cuts: makespan_s(chain, cuts))


def by_bytes(chain: LayerChain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Groups as DistributedDataParallel makes them: filled from the last layer on until they reach the cap.

    Parameters
    ----------
    cap_bytes
        None: DDP's defaults, 1 MiB for the first message and 25 MiB for the others.
    """
    if not chain.bytes:
        raise InputError("groups by bytes need the bytes of every layer; give LayerChain(bytes=...)")
    caps = DEFAULT_CAPS_BYTES if cap_bytes is None else (cap_bytes,)
    gradients = [Gradient(str(layer), chain.bytes[layer - 1]) for layer in range(chain.layer_count, 0, -1)]
    return tuple(reversed([int(bucket.names[0]) for bucket in built_buckets(gradients, caps)]))


def greedy_front(chain: LayerChain) -> tuple[int, ...]:
    """Algorithm 1: the first group computes as long as a second can hide behind it, then each group hides the next.

    Among pairs l1 < l2 with T_s + T(l1+1..l2) ≥ C(1..l1) it takes the one of largest C(1..l1), then of least T(1..l1);
    every further l_k is the smallest l with T_s + T(l_{k−1}+1..l) ≥ C of group k−1.
    """
    count, sent_s, done_s = chain.layer_count, chain.transfers_before_s, chain.compute_before_s
    feasible = [first for first in range(1, count) if chain.startup_s + sent_s[count] - sent_s[first] >= done_s[first]]
    if not feasible:
        return (count,)
    cuts = [min(feasible, key=lambda first: (-done_s[first], sent_s[first]))]
    before = 0
    while cuts[-1] < count:
        hidden_s = done_s[cuts[-1]] - done_s[before]
        before = cuts[-1]
        needed_s = hidden_s - chain.startup_s + sent_s[before]
        cuts.append(min(count, bisect_left(sent_s, needed_s, lo=before + 1)))
    return tuple(cuts)


def greedy_back(chain: LayerChain) -> tuple[int, ...]:
    """Algorithm 2, the mirror image: fix the last two groups, then go to the front.

    Among pairs (l_{N−2}, l_{N−1}) with T_s + T(last group) ≥ C(the group before it) it takes the one of largest C of
    the group before, then of least C of the last; going back, l_k is the smallest l with C(l+1..l_{k+1}) ≤ T_s + T of
    the group after.
    """
    count, sent_s, done_s = chain.layer_count, chain.transfers_before_s, chain.compute_before_s

    def start_of(last: int, after: int) -> int:
        """Smallest l with C(l+1..last) ≤ T_s + T(last+1..after)."""
        return bisect_left(done_s, done_s[last] - chain.startup_s - (sent_s[after] - sent_s[last]))

    pairs = [(start_of(last, count), last) for last in range(1, count)]
    pairs = [(start, last) for start, last in pairs if start < last]
    if not pairs:
        return (count,)
    start, last = min(pairs, key=lambda pair: (done_s[pair[0]] - done_s[pair[1]], done_s[count] - done_s[pair[1]]))
    cuts = [count, last]
    while start > 0:
        cuts.append(start)
        following = start_of(start, cuts[-2])
        start = following if following < start else 0
    return tuple(reversed(cuts))


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
