"""What a codec does to a tensor on its way: encoded and decoded again, without the wire between."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

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
    """Through the kernels with which the communication hook encodes and decodes."""

    def __init__(self, seed: int, min_numel: int) -> None:
        self.seed, self.min_numel, self.calls = seed, min_numel, 0

    def __call__(self, tensor: "torch.Tensor") -> "torch.Tensor":
        import torch

        from dlplacer.data_parallel.ternary.kernels import kernels_for
        from dlplacer.data_parallel.ternary.kernels.random_keys import stream_keys
        from dlplacer.data_parallel.ternary.layout import words_for

        self.calls += 1
        if tensor.numel() < self.min_numel:
            return tensor
        kernels, flat = kernels_for(tensor.device.type), tensor.detach().float().flatten()
        table = np.array([[0, flat.numel(), 0]], dtype=np.int64)
        found = kernels.measure(flat, table, CLIP)
        limits, scalers = found[:, 0].contiguous(), found[:, 1].contiguous()
        words = torch.zeros(1, words_for(flat.numel()), dtype=torch.int32, device=tensor.device)
        keys = stream_keys(self.seed, self.calls, [""], rank=0)
        kernels.encode(flat, table, limits, scalers, keys, words[0])
        received = torch.empty_like(flat)
        kernels.decode(words, scalers.unsqueeze(0), table, received)
        return received.view_as(tensor).to(tensor.dtype)
