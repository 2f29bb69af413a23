"""A schedule in ticks performed: nothing overtakes anything, everything as early as that allows.

The same rule serves in ticks, to tidy up what a solver found, and in seconds, to make a plan of it.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

_MOST_PASSES = 100
"""Passes over all activities: one suffices unless ops of no time tie, each further one settles one more such tie."""


class ResourceUse(NamedTuple):
    """A disjunctive resource, a device or a link direction, in use: in ticks, and by offset and length in any unit."""

    resource: int
    from_tick: int
    to_tick: int
    offset: float
    length: float


class Activity(NamedTuple):
    """An op, a route segment of a transfer, or a moment that others wait for.

    Attributes
    ----------
    key
        Its ticks and what breaks ties: a step comes after all that it waits for.
    after
        (step, lag): it starts no earlier than so long after the start of the other.
    takes
        The device on which it takes memory, or -1.
    frees
        The devices on which something may be freed when it ends.
    release
        It starts no earlier.
    """

    key: tuple[int, ...]
    length: float
    after: tuple[tuple[int, float], ...]
    holds: tuple[ResourceUse, ...] = ()
    takes: int = -1
    frees: tuple[int, ...] = ()
    release: float = 0


def earliest(steps: Sequence[Activity], waits_for_memory: bool) -> list[float]:
    """[step] → its start, with the order of the ticks kept on every resource.

    If memory counts, a step also waits for all that had ended on its device by its tick. What is alive at a start was
    then alive at that tick, so memory suffices if it did in ticks, although things may start earlier than their ticks.
    """
    after = [list(step.after) for step in steps]
    keys = [step.key for step in steps]
    uses: dict[int, list[tuple[int, int, tuple[int, ...], int, ResourceUse]]] = {}
    for number, step in enumerate(steps):
        for hold in step.holds:
            # Rounding may put a use that takes no time a tick behind the end of its step, where a step that waits for
            # it has begun: so uses would follow each other in a circle.
            ticks = min(hold.from_tick, step.key[1]), min(hold.to_tick, step.key[1])
            uses.setdefault(hold.resource, []).append((*ticks, step.key, number, hold))
    for resource in uses.values():
        # Numbers of steps are distinct, unless a step uses a resource twice: then order in the list decides.
        resource.sort(key=itemgetter(0, 1, 2, 3))
        for (_, _, _, first, before), (_, _, _, second, behind) in pairwise(resource):
            after[second].append((first, before.offset + before.length - behind.offset))
    order = sorted(range(len(steps)), key=keys.__getitem__)
    start = [step.release + 0 * step.length for step in steps]
    place = [0] * len(steps)
    for position, number in enumerate(order):
        place[number] = position
    in_turn = all(place[other] < here for here, entries in zip(place, after, strict=True) for other, _ in entries)
    for _ in range(1 if in_turn else _MOST_PASSES):
        changed = False
        ending_ops: dict[int, list[tuple[int, float]]] = {}
        ended: dict[int, float] = {}
        for number in order:
            step, begin = steps[number], start[number]
            for other, lag in after[number]:
                ready = start[other] + lag
                if ready > begin:
                    begin = ready
            if waits_for_memory and step.takes >= 0:
                queue = ending_ops.get(step.takes, [])
                while queue and queue[0][0] <= step.key[0]:
                    ended[step.takes] = max(ended.get(step.takes, 0), heappop(queue)[1])
                begin = max(begin, ended.get(step.takes, 0))
            changed = changed or begin > start[number]
            start[number] = begin
            for device in step.frees if waits_for_memory else ():
                heappush(ending_ops.setdefault(device, []), (step.key[1], begin + step.length))
        if not changed:
            break
    return start
