"""Kernels called on whole tensors, as tests want them."""

import numpy as np
import torch

from dlplacer.data_parallel.ternary.kernels import TernaryKernels
from dlplacer.data_parallel.ternary.layout import BucketLayout, bucket_layout, sum_bits
from dlplacer.data_parallel.ternary.random_keys import stream_keys


def layout_of(*sizes: int) -> BucketLayout:
    return bucket_layout([(f"p{index}", size) for index, size in enumerate(sizes)], 4, lambda *_: True)


def encoded(
    kernels: TernaryKernels,
    flat: torch.Tensor,
    layout: BucketLayout,
    seed: int = 0,
    step: int = 0,
    rank: int = 0,
    clip: float = 2.5,
    scalers: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and the scalers that they multiply."""
    found = kernels.measure(flat, layout.table, clip)
    limits, own = found[:, 0].contiguous(), found[:, 1].contiguous()
    words = torch.zeros(layout.words, dtype=torch.int32)
    keys = stream_keys(seed, step, [span.name for span in layout.coded], rank)
    used = own if scalers is None else scalers
    kernels.encode(flat, layout.table, limits, used, keys, words)
    return words, used


def decoded(kernels: TernaryKernels, words: torch.Tensor, scalers: torch.Tensor, layout: BucketLayout) -> torch.Tensor:
    """The mean over rows."""
    mean = torch.full((layout.coded_numel,), 7.0)
    kernels.decode(words.view(-1, layout.words), scalers.view(-1, len(layout.coded)), layout.table, mean)
    return mean


def round_trip(kernels: TernaryKernels, flat: torch.Tensor, **options: object) -> np.ndarray:
    """One tensor, encoded and decoded."""
    layout = layout_of(len(flat))
    return decoded(kernels, *encoded(kernels, flat, layout, **options), layout).numpy()  # type: ignore[arg-type]


def added(kernels: TernaryKernels, rows: torch.Tensor, ranks: int) -> torch.Tensor:
    """The planes of the sums of all parts of some words, shape (ranks, words), cut into as many parts as ranks."""
    part = 2 * -(-rows.shape[1] // (2 * ranks))
    filled = torch.nn.functional.pad(rows, (0, part * ranks - rows.shape[1]))
    planes = torch.zeros(ranks, sum_bits(ranks), part // 2, dtype=torch.int32)
    for index in range(ranks):
        kernels.add(filled[:, index * part : (index + 1) * part].contiguous(), planes[index])
    return planes
