"""Every rank adds the codes of one part, and the sums go to all: fewer bytes than all codes from three ranks on.

Scalers are shared (eq. 4), so that codes add up as integers: exactly, and in any order. A sum has ⌈log2(2 N + 1)⌉ bits,
which is the paper's pull from parameter servers with every rank as a server. Tensors in full precision are added in
parts too.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from dlplacer.data_parallel.ternary import collectives
from dlplacer.data_parallel.ternary.bucket_codec import BucketCodec, as_float32, mean_of_rows
from dlplacer.data_parallel.ternary.gather_transport import agree_on_scalers
from dlplacer.data_parallel.ternary.layout import BucketLayout, aligned, sum_bits


@dataclass(frozen=True)
class SumParts:
    """How a bucket is shared out: the words, and the elements in full precision, that each rank adds.

    Attributes
    ----------
    words
        Even: a word of a plane holds one bit of the codes of two words.
    sent_bytes, returned_bytes
        A part with what belongs to it, as codes and as sums.
    """

    words: int
    whole: int
    bits: int
    element_bytes: int

    @classmethod
    def of(cls, layout: BucketLayout, ranks: int) -> "SumParts":
        """Equal parts, the last ones filled up with zeros."""
        return cls(
            2 * -(-layout.words // (2 * ranks)),
            -(-layout.whole_numel // ranks),
            sum_bits(ranks),
            layout.element_bytes,
        )

    @property
    def sent_bytes(self) -> int:
        return aligned(4 * self.words) + aligned(self.whole * self.element_bytes)

    @property
    def returned_bytes(self) -> int:
        return aligned(2 * self.bits * self.words) + aligned(self.whole * self.element_bytes)

    def words_and_whole(self, data: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of parts of codes, shape (ranks, `sent_bytes`)."""
        whole = aligned(4 * self.words)
        return (
            data[:, : 4 * self.words].view(torch.int32),
            data[:, whole : whole + self.whole * self.element_bytes].view(dtype),
        )

    def planes_and_whole(self, data: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of parts of sums, shape (ranks, `returned_bytes`)."""
        whole = aligned(2 * self.bits * self.words)
        planes = data[:, : 2 * self.bits * self.words].view(torch.int32)
        return (
            planes.view(len(data), self.bits, self.words // 2),
            data[:, whole : whole + self.whole * self.element_bytes].view(dtype),
        )


def add_codes(codec: BucketCodec, flat: torch.Tensor, step: int) -> torch.Tensor:
    """The averaged bucket, in the buffer of the bucket itself; three collectives, one behind the other."""
    layout, ranks = codec.layout, codec.ranks
    parts, exact = SumParts.of(layout, ranks), as_float32(flat)
    limits, scalers = codec.measured(exact)
    agree_on_scalers(codec, scalers)
    sent = codec.buffer("sent", ranks * parts.sent_bytes, flat.device)
    received = codec.buffer("received", ranks * parts.sent_bytes, flat.device)
    _fill(codec, flat, exact, step, limits, scalers, parts, sent.view(ranks, -1))
    dist.all_to_all_single(received, sent, group=codec.group)
    codec.counters.sent((ranks - 1) * parts.sent_bytes)

    own = codec.buffer("sums", parts.returned_bytes, flat.device)
    gathered = codec.buffer("all sums", ranks * parts.returned_bytes, flat.device)
    rows, whole_rows = parts.words_and_whole(received.view(ranks, -1), flat.dtype)
    planes, whole = parts.planes_and_whole(own.unsqueeze(0), flat.dtype)
    with codec.counters.decoding(flat.device, 0):
        codec.kernels.add(rows.contiguous(), planes[0])
    if layout.whole:
        whole[0].copy_(mean_of_rows(whole_rows))
    collectives.gather(gathered, own, group=codec.group)
    codec.counters.sent((ranks - 1) * parts.returned_bytes)

    planes, whole = parts.planes_and_whole(gathered.view(ranks, -1), flat.dtype)
    with codec.counters.decoding(flat.device, layout.coded_numel):
        codec.kernels.spread(planes.contiguous(), ranks, scalers, layout.table, exact)
    codec.place_coded(exact, flat)
    if layout.whole:
        codec.place_whole(whole.reshape(-1), flat)
    return flat


def _fill(
    codec: BucketCodec,
    flat: torch.Tensor,
    exact: torch.Tensor,
    step: int,
    limits: torch.Tensor,
    scalers: torch.Tensor,
    parts: SumParts,
    sent: torch.Tensor,
) -> None:
    """Put this rank's codes and its tensors in full precision into the parts."""
    ranks = codec.ranks
    words = codec.buffer("words", 4 * ranks * parts.words, flat.device).view(torch.int32)
    codec.encode(exact, step, limits, scalers, words[: codec.layout.words])
    word_parts, whole_parts = parts.words_and_whole(sent, flat.dtype)
    word_parts.copy_(words.view(ranks, -1))
    if codec.layout.whole:
        whole = codec.buffer("whole", ranks * parts.whole * parts.element_bytes, flat.device).view(flat.dtype)
        codec.copy_whole(flat, whole)
        whole_parts.copy_(whole.view(ranks, -1))
