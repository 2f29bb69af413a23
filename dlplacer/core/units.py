"""Reading, rounding and printing of quantities; units are converted only here.

Inside dlplacer times are seconds, sizes bytes and rates bytes or FLOP per second, as floats and ints. Solvers count in
integer ticks (`dlplacer.problem.ticks`).
"""

import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_SIZES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_RATES = {f"{unit}/s": factor for unit, factor in _SIZES.items()}
# Network rates are given in bits per second, with decimal prefixes.
_RATES |= {f"{prefix}{bits}": factor / 8 for prefix, factor in _DECIMAL.items() for bits in ("bit/s", "bps")}

UNITS: dict[str, dict[str, float]] = {
    "seconds": _SECONDS,
    "bytes": _SIZES,
    "bytes_per_s": _RATES,
    "flops": {f"{prefix}FLOP": factor for prefix, factor in _DECIMAL.items()},
    "flops_per_s": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "share": {"%": 0.01},
    "number": {"": 1.0},
}
"""Dimension → unit → factor to the SI base unit."""

_TYPICAL = {"seconds": "25 us", "bytes": "25 GiB", "bytes_per_s": "25 GB/s", "flops": "25 GFLOP"}
_TYPICAL |= {"flops_per_s": "25 TFLOP/s", "share": "1%", "number": "25"}
_QUANTITY = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d]*)")


def parse_quantity(text: str, dimension: str) -> float:
    """The value of ``"25 GB/s"`` or ``"1.5 us"`` in SI base units; `dimension` is a key of `UNITS`.

    Raises ValueError if the text is no number, its unit has another dimension, or the value is too large for a float.
    """
    match = _QUANTITY.fullmatch(text.strip())
    units = UNITS[dimension]
    shown = reprlib.repr(text)
    if match is None:
        with_unit = {"number": "", "share": " or a percentage"}.get(dimension, " with a unit")
        raise ValueError(f"{shown} is not a number{with_unit}; write for example {_TYPICAL[dimension]!r}")
    number, unit = match.groups()
    if unit and unit not in units:
        raise ValueError(f"{shown} has unit {reprlib.repr(unit)}; use one of {', '.join(sorted(units))}")
    try:
        return float(Fraction(repr(float(number))) * Fraction(repr(units.get(unit, 1))))
    except (OverflowError, ValueError):  # from a fraction, or from the text of an infinity
        raise ValueError(f"{shown} is too large; use a number below 1.8e308") from None


def _scaled(value: float, units: Mapping[str, float], least: str) -> str:
    """The value to four digits in the largest unit in which it is at least 1; else in the format `least`."""
    unit = next((unit for unit, factor in units.items() if abs(value) >= factor), None)
    return least.format(value) if unit is None else f"{value / units[unit]:.4g} {unit}"


def format_seconds(value_s: float) -> str:
    """A short text such as ``12.3 ms``."""
    return _scaled(value_s, {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}, "{:.4g} s")


def format_bytes(value_bytes: float) -> str:
    """A short text such as ``12.4 GiB``."""
    return _scaled(value_bytes, {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}, "{:.0f} B")


def format_bytes_per_s(value_bytes_per_s: float) -> str:
    """A short text such as ``20.75 GB/s``, in the decimal units of data sheets."""
    units = {"PB/s": 1e15, "TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3}
    return _scaled(value_bytes_per_s, units, "{:.4g} B/s")
