"""What a codec does to a tensor on its way: encoded and decoded again, without the wire between."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.gradient_codecs import CODECS

if TYPE_CHECKING:
    import torch

CLIP = 2.5
"""Standard deviations at which TernGrad clips a gradient (Wen et al. 2017, eq. 21)."""


def codec_noise(codec: str | None, seed: int) -> "Callable[[torch.Tensor], torch.Tensor]":
    """Tensor → what the others receive of it.

    Raises
    ------
    InputError
        If there is no such codec.
    """
    if codec in (None, "none"):
        return lambda tensor: tensor
    if codec == "fp16":
        return lambda tensor: tensor.half().to(tensor.dtype)
    if codec == "ternary":
        import torch

        generators: dict[torch.device, torch.Generator] = {}

        def ternary(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device not in generators:
                generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)
            return _ternary(tensor, generators[tensor.device])

        return ternary
    raise InputError(f"there is no codec {codec!r} to emulate; use one of {', '.join(CODECS)}")


def _ternary(tensor: "torch.Tensor", generator: "torch.Generator") -> "torch.Tensor":
    """s · sign(g) · b with P(b = 1) = |g| ÷ s, for the clipped gradient g and s = max |g| (eq. 1–3 and 21)."""
    import torch

    limit = CLIP * tensor.std(unbiased=False)
    # Without spread there is nothing to clip, and clipping at 0 would lose the gradient.
    clipped = tensor.clamp(-limit, limit) if limit > 0 else tensor
    scaler = clipped.abs().max() if clipped.numel() else clipped.sum()
    if not scaler > 0:
        return clipped
    drawn = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)
    return scaler * clipped.sign() * (drawn * scaler < clipped.abs())
