"""Ticks: the integers in which solvers count time, and the exact numbers from which they are made."""

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

MAX_TICKS = 2**30
"""Horizons stay below this many ticks: CP-SAT may drop the enforcement of rows whose coefficients sum past 2^31."""

_MIN_TICK_S = Fraction(1, 10**9)
_MAX_COMMON_UNIT_VALUES = 20_000


def exact(value: float | int) -> Fraction:
    """The decimal number that the user wrote: ``0.1`` is 1/10, not the nearest binary fraction."""
    return Fraction(value) if isinstance(value, int) else _decimal(float(value))


@lru_cache(maxsize=2**16)
def _decimal(value: float) -> Fraction:
    # Layers have repeated times, and parsing a fraction takes 10 us.
    return Fraction(repr(value))


def choose_tick(values: Iterable[Fraction], horizon: Fraction) -> Fraction:
    """The length of a tick in seconds, from all durations and delays of a problem and an upper bound on its makespan.

    If all values are multiples of a common unit and the horizon is below `MAX_TICKS` units, the tick is that unit
    and ticks are exact. Otherwise it is the larger of 1 ns and horizon ÷ (`MAX_TICKS` − 1).
    """
    nonzero = {value for value in values if value}
    coarse = max(_MIN_TICK_S, horizon / (MAX_TICKS - 1))
    if not nonzero or len(nonzero) > _MAX_COMMON_UNIT_VALUES:
        return coarse if nonzero else _MIN_TICK_S
    unit = Fraction(0)
    for value in nonzero:
        (a, b), (c, d) = unit.as_integer_ratio(), value.as_integer_ratio()
        unit = Fraction(math.gcd(a * d, c * b), b * d)
        if horizon >= unit * MAX_TICKS:
            return coarse
    return unit


def ticks(value_s: Fraction, tick_s: Fraction) -> int:
    """A time in whole ticks, rounded down, so that a bound in ticks is a bound in seconds."""
    # The same as `//`, in a third of its time.
    return (value_s.numerator * tick_s.denominator) // (value_s.denominator * tick_s.numerator)
