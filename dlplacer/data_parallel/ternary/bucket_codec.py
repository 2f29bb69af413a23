"""One bucket: its layout, its kernels, and the buffers that its messages are made in."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from dlplacer.data_parallel.ternary.counters import Counters
from dlplacer.data_parallel.ternary.kernels import TernaryKernels
from dlplacer.data_parallel.ternary.layout import BucketLayout
from dlplacer.data_parallel.ternary.random_keys import stream_keys
from dlplacer.data_parallel.ternary.settings import SUMS, TernarySettings


@dataclass
class BucketCodec:
    """What the transports need of a bucket; one is kept from step to step, so that buffers are allocated once.

    Attributes
    ----------
    scalers
        Of the coded tensors, as this rank has sent them last; the words are their codes.
    """

    layout: BucketLayout
    settings: TernarySettings
    group: dist.ProcessGroup
    kernels: TernaryKernels
    counters: Counters
    transport: str
    scalers: torch.Tensor | None = None
    words: torch.Tensor | None = None
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The size of the group."""
        return self.group.size()

    @property
    def takes_several_collectives(self) -> bool:
        """Whether one collective's result is needed for the next."""
        return bool(self.layout.coded) and (self.transport == SUMS or self.settings.share_scaler)

    def buffer(self, use: str, size_bytes: int, device: torch.device) -> torch.Tensor:
        """Bytes for one use, the same from step to step."""
        if use not in self.buffers:
            self.buffers[use] = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        return self.buffers[use]

    def measured(self, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Limits and own scalers of the coded tensors of a float32 gradient (eq. 2, 21)."""
        with self.counters.encoding(exact.device, 0):
            found = self.kernels.measure(exact, self.layout.table, self.settings.clip)
        return found[:, 0].contiguous(), found[:, 1].contiguous()

    def encode(
        self, exact: torch.Tensor, step: int, limits: torch.Tensor, scalers: torch.Tensor, words: torch.Tensor
    ) -> None:
        """Fill ``words`` with this rank's codes of a float32 gradient."""
        names = [span.name for span in self.layout.coded]
        keys = stream_keys(self.settings.seed, step, names, self.group.rank())
        with self.counters.encoding(exact.device, self.layout.coded_numel):
            self.kernels.encode(exact, self.layout.table, limits, scalers, keys, words)
        self.scalers, self.words = scalers, words

    def copy_whole(self, flat: torch.Tensor, out: torch.Tensor) -> None:
        """Put what travels in full precision side by side."""
        spans = self.layout.whole
        if spans:
            torch.cat([flat[span.start : span.end] for span in spans], out=out[: self.layout.whole_numel])

    def place_whole(self, mean: torch.Tensor, flat: torch.Tensor) -> None:
        """Put averaged tensors of full precision back where they stand in the bucket."""
        at = 0
        for span in self.layout.whole:
            flat[span.start : span.end] = mean[at : at + span.numel]
            at += span.numel

    def place_coded(self, mean: torch.Tensor, flat: torch.Tensor) -> None:
        """Put decoded tensors, float32 at their places in the bucket, into a bucket of another type."""
        if mean is not flat:  # else the kernels have written there already
            for span in self.layout.coded:
                flat[span.start : span.end] = mean[span.start : span.end]

    def scalers_by_name(self) -> dict[str, float]:
        """The scalers that this rank has sent last."""
        if self.scalers is None:
            return {}
        return {span.name: value for span, value in zip(self.layout.coded, self.scalers.tolist(), strict=True)}

    def nonzero(self) -> int:
        """Codes other than 0 among those that this rank has sent last: each is one bit."""
        if self.words is None:
            return 0
        bits = self.words.view(torch.uint8).unsqueeze(-1) >> torch.arange(8, device=self.words.device) & 1
        return int(bits.sum())


def as_float32(flat: torch.Tensor) -> torch.Tensor:
    """The gradient as the kernels want it."""
    return flat if flat.dtype == torch.float32 else flat.float()


def mean_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """The mean over ranks of what travelled in full precision, added in the order of ranks: the same bits everywhere.

    16-bit types are added in float32.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    total = rows[0].to(wide, copy=True)
    for row in rows[1:]:
        total += row
    return total / len(rows)
