"""Op times under what the other devices do meanwhile: between those alone and those side by side."""

from collections.abc import Callable, Collection, Mapping
from heapq import merge

from dlplacer.core.plan import Plan

_ROUNDS = 3

OpSeconds = Mapping[str, float]


def overlap_shares(plan: Plan, devices: Collection[str], replicas: int = 1) -> dict[str, float]:
    """Op on one of these devices → share of the other devices that work while it runs: 0 alone, 1 beside all.

    The mean over the op's time of the number of other devices that run an op, over how many others there are. Replicas
    do the same at the same time, so that a device's counterparts in other replicas work whenever it does.

    Parameters
    ----------
    devices
        Those that the plan uses and that contend with each other; a network is none of them.
    """
    others = replicas * len(devices) - 1
    entries = [entry for entry in plan.ops if entry.device in devices and entry.end_s > entry.start_s]
    if not others:
        return dict.fromkeys((entry.op for entry in entries), 0.0)
    begins = sorted((entry.start_s, 1) for entry in entries)
    ends = sorted((entry.end_s, -1) for entry in entries)
    busy, busy_s, last_s = 0, 0.0, 0.0
    until: dict[float, float] = {}  # moment → device-seconds of work before it
    for moment_s, change in merge(ends, begins):
        busy_s += busy * (moment_s - last_s)
        busy, last_s = busy + change, moment_s
        until[moment_s] = busy_s
    shares = {}
    for entry in entries:
        working = (until[entry.end_s] - until[entry.start_s]) / (entry.end_s - entry.start_s)
        shares[entry.op] = min(1.0, max(0.0, (replicas * working - 1) / others))
    return shares


def blended(alone: OpSeconds, together: OpSeconds, shares: Mapping[str, float]) -> dict[str, float]:
    """Op → alone + share × (together − alone); an op without a share runs alone."""
    return {op: alone[op] + shares.get(op, 0.0) * (together[op] - alone[op]) for op in alone}


def settled_shares(
    alone: OpSeconds,
    together: OpSeconds,
    replay: Callable[[OpSeconds], Plan],
    devices: Collection[str],
    replicas: int = 1,
) -> dict[str, float]:
    """Op → share of overlap in the plan that is replayed under the op times that these very shares give.

    A fixed point, begun with every op beside all others; shares depend on times only through who runs when, so that
    three rounds reach it but for ops that change neighbours.

    Parameters
    ----------
    replay
        Op times → the plan under them.
    """
    shares = dict.fromkeys(alone, 1.0)
    for _ in range(_ROUNDS):
        shares = overlap_shares(replay(blended(alone, together, shares)), devices, replicas)
    return shares
