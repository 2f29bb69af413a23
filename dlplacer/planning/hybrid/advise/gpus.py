"""Lemma 3.1 of Zou et al. 2017 asked backwards; the lemma itself is `SerialOverhead` of the hybrid planner."""

from dlplacer.core.errors import InputError
from dlplacer.planning.hybrid.scaling_efficiency import MOST_WORKERS


def most_overhead_ratio(wanted_efficiency: float, gpus: int) -> float:
    """R = (1 − α) ÷ (α·G − 1): the overhead per unit of computation that this efficiency on G GPUs allows.

    Raises
    ------
    InputError
        If the efficiency is not in (0, 1], or is at most 1 ÷ G, which any overhead allows.
    """
    if gpus < 1:
        raise InputError(f"there are {gpus} GPUs; give at least 1")
    if gpus > MOST_WORKERS:
        raise InputError(f"there are 10^{len(str(gpus)) - 1} GPUs or more; give at most {MOST_WORKERS:g}")
    if not 0 < wanted_efficiency <= 1:
        raise InputError(f"efficiency is {wanted_efficiency:g}; it must be above 0 and at most 1 (0.8 is 80 %)")
    if wanted_efficiency * gpus <= 1:
        raise InputError(
            f"an efficiency of {wanted_efficiency:g} on {gpus} GPUs is no faster than one GPU, so any overhead allows "
            f"it; ask for more than {1 / gpus:g}"
        )
    return (1 - wanted_efficiency) / (wanted_efficiency * gpus - 1)
