"""Ternary gradients in numpy: clip, ternarize, pack, average. The oracle of every other implementation.

A gradient becomes a scaler s and codes in {−1, 0, 1} with E[s · code] = clip(gradient) (eq. 1–3, 21). Codes are drawn
from a counter-based generator keyed by (seed, step, rank, tensor), so every replica can replay them and ranks differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.errors import InputError

CLIP = 2.5
"""c of eq. 21: gradients are clipped at c standard deviations."""

Floats = NDArray[np.float32]
Codes = NDArray[np.int8]


@dataclass(frozen=True)
class Ternary:
    """A scaler and the codes that it multiplies; codes have the gradient's shape."""

    scaler: float
    codes: Codes

    def decoded(self) -> Floats:
        """s · codes as float32."""
        return np.float32(self.scaler) * self.codes.astype(np.float32)


def clipped(gradient: Floats, clip: float = CLIP) -> Floats:
    """The gradient with its elements held within ±clip standard deviations (eq. 21).

    Left as it is where that would destroy it: a constant tensor, whose deviation is 0, and one whose mean exceeds its
    deviation, as biases and the scales of norms have.
    """
    deviation = float(gradient.std()) if gradient.size else 0.0
    if deviation == 0 or abs(float(gradient.mean())) > deviation:
        return gradient
    limit = np.float32(clip * deviation)
    return np.clip(gradient, -limit, limit)


def ternarize(gradient: Floats, key: Sequence[int], scaler: float | None = None, clip: float = CLIP) -> Ternary:
    """Codes drawn with P(|code| = 1) = |clipped gradient| ÷ scaler; an all-zero gradient has scaler 0.

    Parameters
    ----------
    key
        (seed, step, rank, tensor): what the draw depends on, and nothing else.
    scaler
        Shared by all ranks, at least the largest clipped element (eq. 4); None takes that of this gradient.

    Raises
    ------
    InputError
        If the scaler is smaller than the largest clipped element, or the gradient is not finite.
    """
    if not np.isfinite(gradient).all():
        raise InputError("the gradient holds infinite or undefined values; skip the step or lower the loss scale")
    held = clipped(np.asarray(gradient, dtype=np.float32), clip)
    largest = float(np.abs(held).max(initial=0.0))
    chosen = largest if scaler is None else scaler
    if chosen < largest:
        raise InputError(f"scaler is {chosen:g}; it must be at least the largest clipped element, {largest:g}")
    if chosen == 0:
        return Ternary(0.0, np.zeros(held.shape, dtype=np.int8))
    draws = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(key)))).random(held.shape)
    kept = draws < np.abs(held) / chosen
    return Ternary(chosen, (np.sign(held) * kept).astype(np.int8))


def shared_scaler(gradients: Sequence[Floats], clip: float = CLIP) -> float:
    """The largest clipped element over all ranks (eq. 4): with it, codes can be summed before they are decoded."""
    return max((float(np.abs(clipped(gradient, clip)).max(initial=0.0)) for gradient in gradients), default=0.0)


def averaged(ternaries: Sequence[Ternary]) -> Floats:
    """The mean over ranks. With one scaler for all it is s ÷ N × (integer sum): bitwise equal whatever the order.

    Raises
    ------
    InputError
        If there are no ranks.
    """
    if not ternaries:
        raise InputError("the average of no gradients; give those of at least one rank")
    count = len(ternaries)
    if len({ternary.scaler for ternary in ternaries}) == 1:
        total: Any = sum(ternary.codes.astype(np.int32) for ternary in ternaries)
        summed: Floats = np.float32(ternaries[0].scaler) * total.astype(np.float32) / np.float32(count)
        return summed
    mean: Floats = np.mean([ternary.decoded() for ternary in ternaries], axis=0, dtype=np.float32)
    return mean


def pack(codes: Codes) -> NDArray[np.uint8]:
    """Four codes to a byte, the last byte filled with zeros."""
    flat = (codes.reshape(-1) + 1).astype(np.uint8)
    padded = np.concatenate([flat, np.ones(-len(flat) % 4, dtype=np.uint8)]).reshape(-1, 4)
    packed: NDArray[np.uint8] = padded[:, 0] | padded[:, 1] << 2 | padded[:, 2] << 4 | padded[:, 3] << 6
    return packed


def unpack(packed: NDArray[np.uint8], shape: Sequence[int]) -> Codes:
    """The codes of `pack`, in the given shape."""
    spread = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=1).reshape(-1)
    codes: Codes = spread[: int(np.prod(shape))].astype(np.int8) - np.int8(1)
    return codes.reshape(tuple(shape))
