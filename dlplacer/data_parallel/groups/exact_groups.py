"""The grouping of least makespan.

With P_l the transfers of layers 1..l, S_j the computation of layers after j, and W(j) the least makespan of layers
after j when channel and device are free at time 0, the first group (j, l] shifts everything behind it by its own
transfer, so

    W(L) = 0,    W(j) = min over j < l ≤ L of  T_s + P_l − P_j + max(S_j, W(l)),    optimum = W(0).

The critical path of a grouping is max over its groups of arrival + computation from the group on, and the suffix's
value moves by exactly the first group's message, hence no count of groups is needed.
"""

from bisect import bisect_right
from collections import deque

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.groups.layer_chain import LayerChain

_SLACK = 1e-12
"""Relative rounding that sums of thousands of layers may leave between two computations of one makespan."""


def best_groups(chain: LayerChain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Last layers of the groups of least makespan, and among those the fewest groups, in O(L log L)."""
    return fewest_groups(chain, least_makespan_s(chain, cap_bytes) * (1 + _SLACK), cap_bytes)


def fewest_groups(chain: LayerChain, within_s: float, cap_bytes: int | None = None) -> tuple[int, ...]:
    """The fewest groups of at most this makespan: every group as long as its arrival leaves time for what follows.

    A grouping keeps to the makespan exactly if k·T_s + P_l + S_j is at most that for every k-th group (j, l]. A longer
    group leaves the later ones fewer messages and less computation, so taking the longest loses nothing.

    Raises
    ------
    InputError
        If no grouping is that short.
    """
    cuts, reach, sent_s = [0], chain.reach(cap_bytes), chain.transfers_before_s
    # Among groupings of one makespan the fewest messages depend least on the start-up cost being what was fitted.
    while cuts[-1] < chain.layer_count:
        start = cuts[-1]
        latest_s = within_s - len(cuts) * chain.startup_s - chain.compute_after_s[start]
        last = min(bisect_right(sent_s, latest_s) - 1, reach[start])
        if last <= start:
            raise InputError(
                f"no grouping of the {chain.layer_count} layers takes at most {within_s:g} s; the least is "
                f"{least_makespan_s(chain, cap_bytes):g} s"
            )
        cuts.append(last)
    return tuple(cuts[1:])


def least_makespan_s(chain: LayerChain, cap_bytes: int | None = None) -> float:
    """W(0), in O(L).

    W does not rise with j, so the candidates l split where W(l) ≤ S_j first holds: from there on the earliest l is
    best, before it the least of W(l) + P_l in a window whose ends only move to the left, kept in a monotone queue.

    Parameters
    ----------
    cap_bytes
        Most bytes of one group; a layer above it travels alone. None: no cap.
    """
    count, sent_s, after_s = chain.layer_count, chain.transfers_before_s, chain.compute_after_s
    reach = chain.reach(cap_bytes)
    rest_s = [0.0] * (count + 1)
    window: deque[int] = deque()
    high = count
    for start in reversed(range(count)):
        added = start + 1
        while window and rest_s[added] + sent_s[added] <= rest_s[window[-1]] + sent_s[window[-1]]:
            window.pop()
        window.append(added)
        # S_j grows and W does not rise as j falls, so that this end only moves to the left: O(L) over all starts.
        while high - 1 > start and rest_s[high - 1] <= after_s[start]:
            high -= 1
        while window and window[0] > min(high - 1, reach[start]):
            window.popleft()
        candidates = [window[0]] if window else []
        if high <= reach[start]:
            candidates.append(high)
        value_s = min(sent_s[last] + max(after_s[start], rest_s[last]) for last in candidates)
        rest_s[start] = chain.startup_s - sent_s[start] + value_s
    return rest_s[0]
