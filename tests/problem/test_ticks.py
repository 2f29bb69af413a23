"""The length of a tick, and times in ticks."""

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.problem.ticks import MAX_TICKS, choose_tick, exact, ticks


def test_commensurable_values_give_their_common_unit() -> None:
    # 6 us and 10 us are multiples of 2 us, and 100 us are 50 of them.
    values = [Fraction(6, 10**6), Fraction(10, 10**6), Fraction(0)]
    assert choose_tick(values, Fraction(100, 10**6)) == Fraction(2, 10**6)


def test_the_horizon_decides_at_its_limit() -> None:
    unit = Fraction(1, 10**6)
    assert choose_tick([unit], unit * (MAX_TICKS - 1)) == unit
    assert choose_tick([unit], unit * MAX_TICKS) == unit * MAX_TICKS / (MAX_TICKS - 1)


@given(
    st.lists(st.fractions(0, 100, max_denominator=10**7), min_size=1, max_size=20),
    st.fractions(0, 1000, max_denominator=10**4),
)
def test_horizons_stay_below_the_limit(values: list[Fraction], more: Fraction) -> None:
    horizon = sum(values, more)
    tick = choose_tick(values, horizon)
    assert tick > 0
    assert math.ceil(horizon / tick) < MAX_TICKS
    is_exact = all(value % tick == 0 for value in values)
    assert is_exact or tick == max(Fraction(1, 10**9), horizon / (MAX_TICKS - 1))


@settings(max_examples=60)
@given(st.lists(st.fractions(0, 1000, max_denominator=12)), st.fractions(Fraction(1, 12), 3, max_denominator=12))
def test_quick_arithmetic_is_that_of_fractions(values: list[Fraction], unit: Fraction) -> None:
    assert [ticks(value, unit) for value in values] == [value // unit for value in values]


def test_exact_takes_the_decimal_number() -> None:
    assert exact(0.1) == Fraction(1, 10)
    assert exact(1.5e-6) == Fraction(3, 2_000_000)
    assert exact(2**60 + 1) == 2**60 + 1
