"""What clipping and ternarizing do to a Gaussian gradient, in closed form and by sampling."""

import math
from dataclasses import dataclass

import numpy as np

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


def sampled_zero_share(clip: float, elements: int = 1_000_000, seed: int = 0) -> float:
    """Share of codes that are 0 in a draw: the closed form's check by sampling.

    An element is kept with probability |g| ÷ s, where s is the largest element after clipping (eq. 1 to 3 and 21).
    """
    random = np.random.default_rng(seed)
    sizes = np.abs(random.standard_normal(elements))
    held = np.minimum(sizes, clip * np.sqrt(np.mean(sizes**2)))
    return float(np.mean(random.random(elements) >= held / held.max()))
