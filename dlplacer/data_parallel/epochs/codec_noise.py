"""What a codec does to a tensor on its way: encoded and decoded again, without the wire between."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.gradient_codecs import CODECS

if TYPE_CHECKING:
    import torch

CLIP = 2.5
"""Standard deviations at which `dlplacer.data_parallel.TernaryState` clips by default (Wen et al. 2017, eq. 21)."""


def codec_noise(codec: str | None, seed: int, min_numel: int) -> "Callable[[torch.Tensor], torch.Tensor]":
    """Tensor → what the others receive of it; every call draws anew, and the same seed draws the same.

    Parameters
    ----------
    min_numel
        Smaller tensors travel in full precision under the ternary codec.

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
        return _Ternary(seed, min_numel)
    raise InputError(f"there is no codec {codec!r} to emulate; use one of {', '.join(CODECS)}")


class _Ternary:
    """By the kernel with which the communication hook draws its codes."""

    def __init__(self, seed: int, min_numel: int) -> None:
        self.seed, self.min_numel, self.calls = seed, min_numel, 0

    def __call__(self, tensor: "torch.Tensor") -> "torch.Tensor":
        import torch

        from dlplacer.data_parallel.ternary.bucket import kernels_for, limits_and_scalers, stream_key

        self.calls += 1
        if tensor.numel() < self.min_numel:
            return tensor
        flat = tensor.detach().float().flatten()
        limits, scalers = limits_and_scalers([flat], CLIP)
        codes = torch.empty(flat.shape, dtype=torch.int8, device=flat.device)
        key = stream_key(self.seed, self.calls, "", 0)
        kernels_for(flat.device.type).draw(flat, limits[0], scalers[0], key, codes)
        return (scalers * codes).view_as(tensor).to(tensor.dtype)
