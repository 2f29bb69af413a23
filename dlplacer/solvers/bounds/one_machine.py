"""Bounds from colocation, as all ops of a block run on one device, one at a time; and sums that fill a device."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from math import gcd

from dlplacer.solvers.instance.instance import Instance

_MOST_UNITS = 2**21
"""Units of the greatest common divisor up to which all sums are listed, a bit for each: a shift takes 0.03 ms."""


def block_bound(instance: Instance, head: Sequence[int], tail: Sequence[int]) -> int:
    """Ticks in which no block that has several ops, on whichever device, can have ended.

    Proof: the ops of a block run one after another on its device (eq. 7 and 12), each after its head and with its tail
    to go. With interruptions allowed, the least time for that is found by taking, of the ops that are there, the one
    of longest tail (Jackson 1955; Carlier 1982).
    """
    bound = 0
    for ops in instance.members:
        if len(ops) > 1:
            heads, tails = [head[op] for op in ops], [tail[op] for op in ops]
            rows = {tuple(instance.duration[op][device] for op in ops) for device in instance.allowed[ops[0]]}
            ends = (preemptive_end(zip(heads, row, tails, strict=True)) for row in rows)
            bound = max(bound, min(ends, default=0))
    return bound


def packing_bound(instance: Instance, head: Sequence[int], tail: Sequence[int]) -> int:
    """Ticks in which blocks cannot be spread over the devices, however little else they wait for.

    Proof: of the k·m + 1 blocks of most work, m being the number of devices, some device gets k + 1, whose work is at
    least that of the k + 1 smallest of them (eq. 7 and 12). Before it starts the least head of all working ops has
    passed, and after it the least tail remains.
    """
    working = [op for op, ticks in enumerate(instance.shortest) if ticks]
    if not working:
        return 0
    idle = min(head[op] for op in working) + min(tail[op] for op in working)
    work = sorted((sum(instance.shortest[op] for op in ops) for ops in instance.members), reverse=True)
    sums, count = list(accumulate(work, initial=0)), instance.device_count
    most = (len(work) - 1) // count
    return idle + max((sums[k * count + 1] - sums[k * count - k] for k in range(1, most + 1)), default=-idle)


def preemptive_end(jobs: Iterable[tuple[int, int, int]]) -> int:
    """The least tick at which all (head, ticks, tail) jobs of one machine have ended and left their tails.

    Jobs may be interrupted, so this is no more than what jobs that may not be need.
    """
    coming = sorted(jobs)
    there: list[tuple[int, int]] = []
    now, end, position = 0, 0, 0
    while there or position < len(coming):
        if not there:
            now = max(now, coming[position][0])
        while position < len(coming) and coming[position][0] <= now:
            heappush(there, (-coming[position][2], coming[position][1]))
            position += 1
        tail, left = heappop(there)
        until = coming[position][0] if position < len(coming) else now + left
        spent = min(left, until - now)
        now += spent
        if spent < left:
            heappush(there, (tail, left - spent))
        else:
            end = max(end, now - tail)
    return end


def reachable_capacity(sizes: Iterable[int], capacity: Sequence[int | None]) -> list[int | None]:
    """[device] → the most bytes that some of the sizes fill without exceeding its memory.

    Ten layers of 3 bytes fill 18 of 20 bytes. Where sizes have no large common divisor the sums are too many to list,
    and the capacity is rounded down to a multiple of the divisor.
    """
    taken = tuple(sorted(size for size in sizes if size > 0))
    return [None if room is None else min(room, _reachable(taken, room)) for room in capacity]


@lru_cache(maxsize=64)
def _reachable(sizes: tuple[int, ...], room: int) -> int:
    unit = gcd(*sizes)
    if not unit or sum(sizes) <= room:
        return room
    units = room // unit
    if units > _MOST_UNITS:
        return units * unit
    inside, sums = (1 << (units + 1)) - 1, 1
    for size in sizes:
        sums |= (sums << (size // unit)) & inside
    return (sums.bit_length() - 1) * unit
