"""A schedule in ticks performed: nothing overtakes anything, everything as early as that allows.

The same rule serves in ticks, to tidy up what a solver found, and in seconds, to make a plan of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

_MOST_PASSES = 100
"""Passes over all activities: one suffices unless ops of no time tie, each further one settles one more such tie."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """A disjunctive resource, a device or a link direction, in use: in ticks, and by offset and length in any unit."""

    resource: int
    from_tick: int
    to_tick: int
    offset: float
    length: float


@dataclass(frozen=True, slots=True)
class Activity:
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
    uses: dict[int, list[tuple[int, int, tuple[int, ...], int, ResourceUse]]] = {}
    for number, step in enumerate(steps):
        for hold in step.holds:
            # Rounding may put a use that takes no time a tick behind the end of its step, where a step that waits for
            # it has begun: so uses would follow each other in a circle.
            ticks = min(hold.from_tick, step.key[1]), min(hold.to_tick, step.key[1])
            uses.setdefault(hold.resource, []).append((*ticks, step.key, number, hold))
    for resource in uses.values():
        for (*_, first, before), (*_, second, behind) in pairwise(sorted(resource, key=lambda use: use[:4])):
            after[second].append((first, before.offset + before.length - behind.offset))
    order = sorted(range(len(steps)), key=lambda number: steps[number].key)
    start = [0.0 if isinstance(step.length, float) else 0 for step in steps]
    place = [0] * len(steps)
    for position, number in enumerate(order):
        place[number] = position
    in_turn = all(place[other] < place[number] for number, entries in enumerate(after) for other, _ in entries)
    for _ in range(1 if in_turn else _MOST_PASSES):
        changed = False
        ending_ops: dict[int, list[tuple[int, float]]] = {}
        ended: dict[int, float] = {}
        for number in order:
            step = steps[number]
            begin = max([start[number], step.release, *(start[other] + lag for other, lag in after[number])])
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
