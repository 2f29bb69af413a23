"""What encodes and decodes on a device: compiled where that is possible, in plain PyTorch with a warning elsewhere."""

import importlib.util
import warnings
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class TernaryKernels(Protocol):
    """The codec of flat float32 gradients; ``table`` is that of `BucketLayout`, all tensors are on one device.

    Every implementation gives the same words for the same limits, scalers and keys, and the same mean for the same
    words: ranks may use different ones.
    """

    name: str

    def measure(self, flat: torch.Tensor, table: NDArray[np.int64], clip: float) -> torch.Tensor:
        """(limit, scaler) of every tensor, shape (tensors, 2): eq. 21's bound, and the largest magnitude under it.

        The limit is infinite where clipping would destroy a tensor: where all elements are equal, and where the mean
        exceeds the deviation, as in biases. Both are infinite if an element is infinite or undefined.
        """
        ...

    def encode(
        self,
        flat: torch.Tensor,
        table: NDArray[np.int64],
        limits: torch.Tensor,
        scalers: torch.Tensor,
        keys: NDArray[np.uint32],
        words: torch.Tensor,
    ) -> None:
        """Fill ``words`` (int32) with codes: ±1 with probability min(|g|, limit) ÷ scaler (eq. 1–3)."""
        ...

    def decode(self, rows: torch.Tensor, scalers: torch.Tensor, table: NDArray[np.int64], mean: torch.Tensor) -> None:
        """Fill the coded parts of ``mean``: the scaler times code of every rank, added in their order, ÷ ranks.

        Parameters
        ----------
        rows, scalers
            One row for each rank: int32 words, and float32 scalers. An infinite scaler makes its tensor undefined.
        """
        ...

    def add(self, rows: torch.Tensor, planes: torch.Tensor) -> None:
        """Fill ``planes`` with the sums over ranks of the codes in ``rows``, one bit of every sum in each plane.

        Parameters
        ----------
        rows
            The same part of the words of every rank, shape (ranks, words), an even number of words.
        planes
            int32, shape (bits, words ÷ 2). Bit 2 k + h of word m holds a bit of (sum + ranks) of the code that stands
            at place k of word h · words ÷ 2 + m.
        """
        ...

    def spread(
        self,
        planes: torch.Tensor,
        ranks: int,
        scalers: torch.Tensor,
        table: NDArray[np.int64],
        mean: torch.Tensor,
    ) -> None:
        """Fill the coded parts of ``mean`` from the planes of all parts: the shared scaler times the sum, ÷ ranks.

        Parameters
        ----------
        planes
            int32, shape (parts, bits, words of a part ÷ 2); the parts of all words one behind the other.
        """
        ...


@cache
def kernels_for(device_type: str) -> TernaryKernels:
    """The fastest kernels of this device type that can run here; warns once where these are not compiled ones."""
    if device_type == "cpu":
        from dlplacer.data_parallel.ternary.kernels.numba_kernels import NumbaKernels

        return warmed_up(NumbaKernels())
    if device_type == "cuda" and importlib.util.find_spec("triton"):
        from dlplacer.data_parallel.ternary.kernels.triton_kernels import TritonKernels

        return TritonKernels()
    from dlplacer.data_parallel.ternary.kernels.torch_kernels import TorchKernels

    warnings.warn(
        "ternary gradients are encoded by plain PyTorch ops, which costs more than it saves on fast links; there is no "
        f"compiled kernel for {device_type!r}, or triton is not installed: pip install triton",
        stacklevel=2,
    )
    return TorchKernels()


def warmed_up(kernels: TernaryKernels, numel: int = 64) -> TernaryKernels:
    """The same kernels after one round of each, so that what is timed later is not their compilation."""
    table = np.array([[0, numel, 0]], dtype=np.int64)
    flat, words = torch.zeros(numel), torch.zeros(1, -(-numel // 16), dtype=torch.int32)
    found = kernels.measure(flat, table, 1.0)
    limits, scalers = found[:, 0].contiguous(), found[:, 1].contiguous()
    kernels.encode(flat, table, limits, scalers, np.zeros((1, 2), dtype=np.uint32), words[0])
    kernels.decode(words, scalers.unsqueeze(0), table, flat)
    planes = torch.zeros(1, 2, words.shape[1] // 2, dtype=torch.int32)
    kernels.add(words, planes[0])
    kernels.spread(planes, 1, scalers, table, flat)
    return kernels
