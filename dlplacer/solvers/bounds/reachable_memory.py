"""The memory of a device that blocks can fill: sums of their sizes leave gaps."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import gcd

_MOST_UNITS = 2**21
"""Units of the greatest common divisor up to which all sums are listed, a bit for each: a shift takes 0.03 ms."""


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
