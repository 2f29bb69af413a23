"""A model as a chain of layers whose parameters are sent over one channel, and its grouping of least makespan.

Let T_s be the start-up time of a message, P_l the transfers of layers 1..l, S_j the computation of layers after j, and
W(j) their least makespan if channel and device are free at time 0. The first group (j, l] delays later groups, so

    W(L) = 0,    W(j) = min over j < l ≤ L of  T_s + P_l − P_j + max(S_j, W(l)),    optimum = W(0).

The makespan of a grouping is the maximum, over its groups, of arrival + computation from the group on. The first
group's message delays all later arrivals by exactly its time, so W need not depend on the number of groups.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from dlplacer.core.errors import InputError

_SLACK = 1e-12
"""Relative rounding error between two computations of one makespan, with sums of thousands of layers."""


@dataclass(frozen=True)
class LayerChain:
    """Layers 1..L in the order of the forward pass.

    Forward: a group of layers is pulled, then its layers compute. Backward: layers compute from L down to 1, and a
    group is pushed when its gradients are finished. Time reversal swaps the directions, so one solver serves both.

    Attributes
    ----------
    startup_s
        T_s: seconds that every message costs, for any size.
    transfer_s
        t_i: seconds that layer i's parameters occupy the channel.
    compute_s
        c_i: seconds of layer i's computation in the given direction.
    bytes
        Bytes of every layer, for a cap on the bytes of a group; may be empty without a cap.
    names
        Names of the layers; may be empty.
    dtypes
        Dtypes of the layers' parameters, if layers of different dtypes cannot share a group; empty if they can.

    Raises
    ------
    InputError
        If there are no layers, lengths differ, or a time is negative or not finite.
    """

    startup_s: float
    transfer_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    bytes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.transfer_s:
            raise InputError("a chain has no layers; give at least one transfer time and one compute time")
        for name in ("compute_s", "bytes", "names", "dtypes"):
            count = len(getattr(self, name))
            if count != len(self.transfer_s) and (count or name == "compute_s"):
                raise InputError(
                    f"chain: transfer_s has {len(self.transfer_s)} layers, {name} has {count}; give as many"
                )
        for value in (self.startup_s, *self.transfer_s, *self.compute_s, *self.bytes):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"chain: a time, or a size, is {value}; give finite numbers of at least 0")

    @property
    def layer_count(self) -> int:
        """The number of layers, L."""
        return len(self.transfer_s)

    @cached_property
    def transfers_before_s(self) -> tuple[float, ...]:
        """P_l: seconds of the transfers of layers 1..l, for l = 0..L."""
        return tuple(accumulate(self.transfer_s, initial=0.0))

    @cached_property
    def compute_before_s(self) -> tuple[float, ...]:
        """Seconds of the computation of layers 1..l, for l = 0..L."""
        return tuple(accumulate(self.compute_s, initial=0.0))

    @cached_property
    def compute_after_s(self) -> tuple[float, ...]:
        """S_l: seconds of the computation of layers l+1..L, for l = 0..L."""
        return tuple(reversed(tuple(accumulate(reversed(self.compute_s), initial=0.0))))

    def reach(self, cap_bytes: int | None) -> tuple[int, ...]:
        """[l] → the last possible layer of a group that starts after layer l, for l = 0..L-1.

        A group has one dtype, and at most `cap_bytes` unless it is a single layer.
        """
        if cap_bytes is not None and not self.bytes:
            raise InputError("a cap on the bytes of a group needs the bytes of every layer; give LayerChain(bytes=...)")
        sums = tuple(accumulate(self.bytes, initial=0))
        last, found = self.layer_count, []
        for start in reversed(range(self.layer_count)):
            if self.dtypes and start + 1 < self.layer_count and self.dtypes[start] != self.dtypes[start + 1]:
                last = start + 1
            while cap_bytes is not None and last > start + 1 and sums[last] - sums[start] > cap_bytes:
                last -= 1
            found.append(last)
        return tuple(reversed(found))


def makespan_s(chain: LayerChain, cuts: Sequence[int], direction: str = "forward") -> float:
    """Seconds until the last layer has computed (forward) or the last gradient has arrived (backward).

    Forward: the channel sends the groups without a pause; a group computes when it has arrived and the previous group
    has computed. Backward: groups compute from the last to the first; a group is sent when it has computed and the
    channel is free.

    Raises
    ------
    InputError
        If the cuts do not cover the chain or the direction is unknown.
    """
    groups = list(pairwise((0, *cuts)))
    if not groups or any(before >= last for before, last in groups) or groups[-1][1] != chain.layer_count:
        raise InputError(
            f"cuts are {list(cuts)}; give the last layer of every group, in ascending order, up to {chain.layer_count}"
        )
    if direction not in ("forward", "backward"):
        raise InputError(f"direction is {direction!r}; use one of forward, backward")
    ahead_s = behind_s = 0.0
    for before, last in groups if direction == "forward" else reversed(groups):
        message_s = chain.startup_s + sum(chain.transfer_s[before:last])
        compute_s = sum(chain.compute_s[before:last])
        first_s, second_s = (message_s, compute_s) if direction == "forward" else (compute_s, message_s)
        ahead_s += first_s
        behind_s = max(ahead_s, behind_s) + second_s
    return behind_s


def best_groups(chain: LayerChain, cap_bytes: int | None = None) -> tuple[int, ...]:
    """Last layer of every group in the grouping of least makespan, with the fewest groups among equals; O(L log L).

    A grouping has a makespan of at most M if and only if k·T_s + P_l + S_j ≤ M for every k-th group (j, l]. A longer
    group leaves fewer messages and less computation for later groups, so the longest possible group is optimal.

    Parameters
    ----------
    cap_bytes
        Most bytes of one group; a larger layer is sent alone. None means no cap.
    """
    within_s = least_makespan_s(chain, cap_bytes) * (1 + _SLACK)
    cuts, reach, sent_s = [0], chain.reach(cap_bytes), chain.transfers_before_s
    # Among groupings of one makespan, the one with the fewest messages depends least on the fitted start-up cost.
    while cuts[-1] < chain.layer_count:
        start = cuts[-1]
        latest_s = within_s - len(cuts) * chain.startup_s - chain.compute_after_s[start]
        cuts.append(max(start + 1, min(bisect_right(sent_s, latest_s) - 1, reach[start])))
    return tuple(cuts[1:])


def least_makespan_s(chain: LayerChain, cap_bytes: int | None = None) -> float:
    """The least makespan W(0) in seconds, in O(L).

    W does not rise with j, so W(l) ≤ S_j holds from some l on. Of these l, the first is best. Of the earlier l, the one
    of least W(l) + P_l is best; it is in a window whose ends only move to the left, kept in a monotone queue.
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
        # S_j grows as j falls and W(l) does not rise with l, so this end only moves to the left: O(L) over all starts.
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
