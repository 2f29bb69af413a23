"""Collectives as rounds of messages between numbered places, so that they can be laid over any wiring.

A round is a list of (sender, receiver, share of the full vector); its messages start together and the next round starts
when all have arrived. Rounds that load the links alike are listed once with a count. The algorithms are those of
`dlplacer.machines.costs.collectives`, with the same sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.machines.costs.collectives import ceil_log2, floor_power_of_two, require_devices

Step = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Round:
    """Messages that start together, and how many such rounds follow each other."""

    steps: tuple[Step, ...]
    times: int = 1


def ring_half(devices: int) -> tuple[Round, ...]:
    """Reduce-scatter, or all-gather, around a ring: everybody passes 1/N to the next, N − 1 times."""
    require_devices(devices)
    if devices == 1:
        return ()
    return (Round(tuple((i, (i + 1) % devices, 1 / devices) for i in range(devices)), devices - 1),)


def ring_rounds(devices: int) -> tuple[Round, ...]:
    """All-reduce around a ring."""
    return ring_half(devices) + ring_half(devices)


def tree_rounds(devices: int) -> tuple[Round, ...]:
    """All-reduce over a binomial tree: sums up to device 0, then down again."""
    require_devices(devices)
    up = [
        tuple((i, i - width, 1.0) for i in range(width, devices, 2 * width))
        for width in (1 << level for level in range(ceil_log2(devices)))
    ]
    down = [tuple((parent, child, share) for child, parent, share in steps) for steps in reversed(up)]
    return tuple(Round(steps) for steps in (*up, *down))


def halving_doubling_rounds(devices: int) -> tuple[Round, ...]:
    """All-reduce by recursive halving and doubling among a power of two; the others hand in first and get back last."""
    require_devices(devices)
    core = floor_power_of_two(devices)
    extra = range(core, devices)
    halving = [
        tuple((i, i ^ distance, distance / core) for i in range(core))
        for distance in (core >> (level + 1) for level in range(ceil_log2(core)))
    ]
    into = [tuple((i, i - core, 1.0) for i in extra)] if extra else []
    back = [tuple((i - core, i, 1.0) for i in extra)] if extra else []
    return tuple(Round(steps) for steps in (*into, *halving, *reversed(halving), *back))


def doubling_gather_rounds(devices: int) -> tuple[Round, ...]:
    """All-gather by Bruck's algorithm: to the device 2^k before, what has been gathered so far."""
    require_devices(devices)
    widths = [1 << level for level in range(ceil_log2(devices))]
    return tuple(
        Round(tuple((i, (i - width) % devices, min(width, devices - width) / devices) for i in range(devices)))
        for width in widths
    )


def all_to_all_rounds(devices: int) -> tuple[Round, ...]:
    """All-to-all in pairs: in round s to the device s further on.

    Round N − s sends over the ways of round s in the opposite direction, and is counted with it.
    """
    require_devices(devices)
    half = devices // 2
    times = {shift: 1 if 2 * shift == devices else 2 for shift in range(1, half + 1)}
    return tuple(
        Round(tuple((i, (i + shift) % devices, 1 / devices) for i in range(devices)), count)
        for shift, count in times.items()
    )


def server_rounds(workers: int, servers: int) -> tuple[Round, ...]:
    """Push to parameter servers and pull back; workers are numbered first, then servers."""
    require_devices(workers)
    require_devices(servers)
    turns = max(workers, servers)
    push = [
        tuple((w, workers + (w + turn) % turns, 1 / servers) for w in range(workers) if (w + turn) % turns < servers)
        for turn in range(turns)
    ]
    pull = [tuple((server, worker, share) for worker, server, share in steps) for steps in push]
    return tuple(Round(steps) for steps in (*push, *pull))


def hierarchical_rounds(groups: Sequence[Sequence[int]]) -> tuple[Round, ...]:
    """Reduce-scatter inside each group, all-reduce of each part around the groups, all-gather inside.

    Parameters
    ----------
    groups
        Places of each group; all groups have the same size.
    """
    size, count = len(groups[0]), len(groups)
    inside = tuple(Round(_over(groups, once.steps, 1.0), once.times) for once in ring_half(size))
    columns = [[group[part] for group in groups] for part in range(size)]
    across = tuple(Round(_over(columns, once.steps, 1 / size), once.times) for once in ring_rounds(count))
    return inside + across + inside


def _over(groups: Sequence[Sequence[int]], steps: Sequence[Step], scale: float) -> tuple[Step, ...]:
    return tuple((group[a], group[b], scale * share) for group in groups for a, b, share in steps)
