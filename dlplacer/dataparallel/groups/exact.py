"""The grouping of least makespan.

With P_l the transfers of layers 1..l, S_j the computation of layers after j, and W(j) the least makespan of layers
after j when channel and device are free at time 0, the first group (j, l] shifts everything behind it by its own
transfer, so

    W(L) = 0,    W(j) = min over j < l ≤ L of  T_s + P_l − P_j + max(S_j, W(l)),    optimum = W(0).

The critical path of a grouping is max over its groups of arrival + computation from the group on, and the suffix's
value moves by exactly the first group's message, hence no count of groups is needed.
"""

from collections import deque

from dlplacer.dataparallel.groups.chain import Chain


def best_groups(chain: Chain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Last layers of the groups of least makespan, in O(L).

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
    end = [count] * (count + 1)
    window: deque[int] = deque()
    high = count
    for start in reversed(range(count)):
        added = start + 1
        while window and rest_s[added] + sent_s[added] <= rest_s[window[-1]] + sent_s[window[-1]]:
            window.pop()
        window.append(added)
        while high - 1 > start and rest_s[high - 1] <= after_s[start]:
            high -= 1
        while window and window[0] > min(high - 1, reach[start]):
            window.popleft()
        candidates = [window[0]] if window else []
        if high <= reach[start]:
            candidates.append(high)
        value = {last: sent_s[last] + max(after_s[start], rest_s[last]) for last in candidates}
        end[start] = min(candidates, key=value.__getitem__)
        rest_s[start] = chain.startup_s - sent_s[start] + value[end[start]]
    return _cuts(end, count)


def best_groups_quadratic(chain: Chain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """The same in O(L²), as the recurrence is written: the oracle for `best_groups`."""
    count, sent_s, after_s = chain.layer_count, chain.transfers_before_s, chain.compute_after_s
    reach = chain.reach(cap_bytes)
    rest_s = [0.0] * (count + 1)
    end = [count] * (count + 1)
    for start in reversed(range(count)):
        rest_s[start], end[start] = min(
            (chain.startup_s + sent_s[last] - sent_s[start] + max(after_s[start], rest_s[last]), last)
            for last in range(start + 1, reach[start] + 1)
        )
    return _cuts(end, count)


def _cuts(end: list[int], count: int) -> tuple[int, ...]:
    cuts = [end[0]]
    while cuts[-1] < count:
        cuts.append(end[cuts[-1]])
    return tuple(cuts)
