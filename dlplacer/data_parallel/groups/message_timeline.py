"""The schedule of a grouping, message by message: the makespan that policies are compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.groups.layer_chain import DIRECTIONS, LayerChain, require_cuts


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """When the message of a group travels and when its layers compute, in seconds from the start of the pass.

    Attributes
    ----------
    first, last
        Layers of the group, counted from 1.
    """

    first: int
    last: int
    send_start_s: float
    send_end_s: float
    compute_start_s: float
    compute_end_s: float


def timeline(chain: LayerChain, cuts: Sequence[int], direction: str = "forward") -> tuple[GroupTimes, ...]:
    """Every group's times, in the order in which the groups travel.

    Forward: the channel sends group after group without a pause; a group computes once it has arrived and the group
    before it has computed. Backward: groups compute from the last to the first; a group is sent once it has computed
    and the channel is free.

    Raises
    ------
    InputError
        If the cuts do not cover the chain or the direction is unknown.
    """
    require_cuts(chain, cuts)
    if direction not in DIRECTIONS:
        raise InputError(f"direction is {direction!r}; use one of {', '.join(DIRECTIONS)}")
    groups = [(before + 1, last) for before, last in zip((0, *cuts), cuts, strict=False)]
    return _pulls(chain, groups) if direction == "forward" else _pushes(chain, groups)


def makespan_s(chain: LayerChain, cuts: Sequence[int], direction: str = "forward") -> float:
    """Seconds until the last layer has computed (forward) or the last gradient has arrived (backward)."""
    times = timeline(chain, cuts, direction)
    return times[-1].compute_end_s if direction == "forward" else times[-1].send_end_s


def _pulls(chain: LayerChain, groups: Sequence[tuple[int, int]]) -> tuple[GroupTimes, ...]:
    times: list[GroupTimes] = []
    channel_s = device_s = 0.0
    for first, last in groups:
        arrived_s = channel_s + chain.startup_s + sum(chain.transfer_s[first - 1 : last])
        start_s = max(device_s, arrived_s)
        device_s = start_s + sum(chain.compute_s[first - 1 : last])
        times.append(GroupTimes(first, last, channel_s, arrived_s, start_s, device_s))
        channel_s = arrived_s
    return tuple(times)


def _pushes(chain: LayerChain, groups: Sequence[tuple[int, int]]) -> tuple[GroupTimes, ...]:
    times: list[GroupTimes] = []
    channel_s = device_s = 0.0
    for first, last in reversed(groups):
        started_s, device_s = device_s, device_s + sum(chain.compute_s[first - 1 : last])
        sent_s = max(channel_s, device_s)
        channel_s = sent_s + chain.startup_s + sum(chain.transfer_s[first - 1 : last])
        times.append(GroupTimes(first, last, sent_s, channel_s, started_s, device_s))
    return tuple(times)
