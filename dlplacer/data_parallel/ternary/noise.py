"""What clipping and ternarizing do to a Gaussian gradient, in closed form, and what the noise costs in steps."""

import math
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Effects on independent Gaussian elements, clipped at c standard deviations and scaled by the clip.

    Attributes
    ----------
    length_loss
        1 − length after clipping ÷ length before.
    turned_degrees
        Angle between the gradient before and after clipping.
    zero_share
        Expected share of codes that are 0.
    added_variance
        Variance that ternarizing adds to an element, in units of the gradient's variance: E[s·|g| − g²].
    """

    length_loss: float
    turned_degrees: float
    zero_share: float
    added_variance: float


def gaussian_noise(clip: float) -> GaussianNoise:
    """Effects at a clip of `clip` standard deviations (eq. 21).

    Raises
    ------
    InputError
        If the clip is not positive.
    """
    if not clip > 0:
        raise InputError(f"clip is {clip:g} standard deviations; it must be positive (the paper uses 2.5)")
    outside = math.erfc(clip / math.sqrt(2))
    density, peak = math.exp(-(clip**2) / 2) / math.sqrt(2 * math.pi), 1 / math.sqrt(2 * math.pi)
    mean_size = 2 * (peak - density) + clip * outside
    mean_square = 1 - outside - 2 * clip * density + clip**2 * outside
    with_original = 1 - outside
    return GaussianNoise(
        length_loss=1 - math.sqrt(mean_square),
        turned_degrees=math.degrees(math.acos(with_original / math.sqrt(mean_square))),
        zero_share=1 - mean_size / clip,
        added_variance=clip * mean_size - mean_square,
    )


def steps_ratio(batch: float, noise_batch: float, clip: float = 2.5) -> float:
    """Steps with ternary gradients ÷ steps with exact ones, in the gradient-noise model of McCandlish et al. 2018.

    With v = 1 + added variance the ratio is (1 + v·B_noise ÷ B) ÷ (1 + B_noise ÷ B): 1 where the batch is far above the
    noise scale, v where it is far below. An upper bound: measured runs lose less.

    Parameters
    ----------
    batch, noise_batch
        Samples per step over all ranks, and the noise scale B_noise in samples.

    Raises
    ------
    InputError
        If the batch is not positive, or the noise batch negative.
    """
    if not (batch > 0 and noise_batch >= 0):
        raise InputError(f"batch is {batch:g} and noise batch {noise_batch:g}; they must be positive and at least 0")
    noise = noise_batch / batch
    return (1 + (1 + gaussian_noise(clip).added_variance) * noise) / (1 + noise)
