"""The two greedy algorithms of iBatch (section 4), which its exact optimum in dlplacer makes unnecessary.

Open in the paper: ties on l1 leave l2 undetermined (here the smallest l2); no feasible next cut (here the rest goes
into one group); no feasible first pair (here everything goes into one group).
"""

from bisect import bisect_left

from dlplacer.data_parallel.groups import LayerChain


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
