"""Reading, rounding and printing quantities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.units import UNITS, format_seconds, parse_quantity
from dlplacer.problem.ticks import exact


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("25 GB/s", "bytes_per_s", 25e9),
        ("1 GiB/s", "bytes_per_s", 2**30),
        ("10 Gbit/s", "bytes_per_s", 1.25e9),
        ("1.5 µs", "seconds", 1.5e-6),
        (".5 s", "seconds", 0.5),
        ("1min", "seconds", 60.0),
        ("80 GiB", "bytes", 80 * 2**30),
        ("15.7 TFLOP/s", "flops_per_s", 15.7e12),
        ("2e-3 ms", "seconds", 2e-6),
        ("5%", "share", 0.05),
        ("-1 us", "seconds", -1e-6),
        ("0." + "1" * 5000 + " s", "seconds", 1 / 9),
    ],
)
def test_numbers_with_units_are_read(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == value


@pytest.mark.parametrize(("text", "dimension"), [*zip(["", "fast", "1,5 us", "nan", "0x10"], UNITS, strict=False)])
def test_what_is_no_number_is_refused_with_an_example(text: str, dimension: str) -> None:
    with pytest.raises(ValueError, match=f"{text!r} is not a number with a unit; write for example '25 ") as caught:
        parse_quantity(text, dimension)
    assert parse_quantity(str(caught.value).split("'")[-2], dimension) > 0


@pytest.mark.parametrize(
    ("text", "dimension", "known"),
    [("25 Gb/s", "bytes_per_s", "GB/s"), ("1 week", "seconds", "min"), ("25 GB/s", "bytes", "GiB")],
)
def test_an_unknown_unit_is_refused_with_the_known_ones(text: str, dimension: str, known: str) -> None:
    with pytest.raises(ValueError, match="use one of") as caught:
        parse_quantity(text, dimension)
    assert repr(text) in str(caught.value)
    assert known in str(caught.value).partition("use one of ")[2].split(", ")


@pytest.mark.parametrize("text", ["1e400", "1e400 s", "9e999999999 ms", "1" * 400])
def test_a_number_beyond_floats_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is too large"):
        parse_quantity(text, "seconds")


@given(st.floats(0, 1e12), st.sampled_from(sorted(UNITS)), st.data())
def test_reading_undoes_writing(value: float, dimension: str, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[dimension])))
    assert parse_quantity(f"{value!r} {unit}", dimension) == float(exact(value) * exact(UNITS[dimension][unit]))


@pytest.mark.parametrize(
    ("value_s", "text"), [(0, "0 s"), (12.34567, "12.35 s"), (0.0123, "12.3 ms"), (1.5e-6, "1.5 us"), (-0.5, "-500 ms")]
)
def test_seconds_print_short(value_s: float, text: str) -> None:
    assert format_seconds(value_s) == text
