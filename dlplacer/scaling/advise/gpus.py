"""Lemma 3.1 of Zou et al. 2017: efficiency and speedup on G GPUs from the overhead measured on one.

R = T_O ÷ T_C is the part of a step that computation does not hide, per unit of computation. The lemma lets overheads of
GPUs follow one another, so it is Amdahl's law with the parallel part 1 ÷ (1 + R); collectives whose cost saturates do
better at large G (`dlplacer.scaling` fits both to measurements).
"""

import math
from fractions import Fraction

from dlplacer.errors import InputError


def efficiency(overhead_ratio: float, gpus: int) -> float:
    """α = (1 + R) ÷ (1 + G·R)."""
    _require(overhead_ratio, gpus)
    return (1 + overhead_ratio) / (1 + gpus * overhead_ratio)


def speedup(overhead_ratio: float, gpus: int) -> float:
    """α·G: how much faster than one GPU."""
    return efficiency(overhead_ratio, gpus) * gpus


def speedup_ceiling(overhead_ratio: float) -> float:
    """(1 + R) ÷ R: what no number of GPUs reaches; infinite without overhead."""
    _require(overhead_ratio, 1)
    return (1 + overhead_ratio) / overhead_ratio if overhead_ratio else math.inf


def most_overhead_ratio(wanted_efficiency: float, gpus: int) -> float:
    """R = (1 − α) ÷ (α·G − 1): the overhead that this efficiency on G GPUs allows.

    Raises
    ------
    InputError
        If the efficiency is not in (0, 1], or is at most 1 ÷ G, which any overhead allows.
    """
    _require(0.0, gpus)
    if not 0 < wanted_efficiency <= 1:
        raise InputError(f"efficiency is {wanted_efficiency:g}; it must be above 0 and at most 1")
    if wanted_efficiency * gpus <= 1:
        raise InputError(
            f"an efficiency of {wanted_efficiency:g} on {gpus} GPUs is no faster than one GPU, so any overhead allows "
            f"it; ask for more than {1 / gpus:g}"
        )
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)


def fewest_gpus(wanted_speedup: float, overhead_ratio: float) -> int:
    """The fewest GPUs of at least this speedup: G ≥ s ÷ (1 + R − s·R), in exact arithmetic.

    Raises
    ------
    InputError
        If the speedup is not positive, or no number of GPUs reaches it; names the ceiling.
    """
    _require(overhead_ratio, 1)
    if not (wanted_speedup > 0 and math.isfinite(wanted_speedup)):
        raise InputError(f"speedup is {wanted_speedup:g}; it must be positive and finite")
    wanted, ratio = Fraction(str(wanted_speedup)), Fraction(str(overhead_ratio))
    room = 1 + ratio - wanted * ratio
    if room <= 0:
        raise InputError(
            f"a speedup of {wanted_speedup:g}x at R_O = {overhead_ratio:.4g} cannot be reached by any number of GPUs: "
            f"the ceiling is {speedup_ceiling(overhead_ratio):.4g}x; lower the overhead to below "
            f"{1 / (wanted_speedup - 1):.4g}"
        )
    return max(1, math.ceil(wanted / room))


def _require(overhead_ratio: float, gpus: int) -> None:
    if not (overhead_ratio >= 0 and math.isfinite(overhead_ratio)):
        raise InputError(f"overhead ratio is {overhead_ratio:g}; it must be finite and at least 0 (0.1 is 10 %)")
    if gpus < 1:
        raise InputError(f"there are {gpus} GPUs; give at least 1")
