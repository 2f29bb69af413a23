"""Every rank gets the codes of every rank: one all-gather, decoded when it has ended.

The message of a rank is [codes | tensors in full precision | scalers], each part at an aligned place. Codes come first,
so that the messages of all ranks are one matrix of words to the kernels.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.futures import Future

from dlplacer.data_parallel.ternary import collectives
from dlplacer.data_parallel.ternary.bucket_codec import BucketCodec, as_float32, mean_of_rows
from dlplacer.data_parallel.ternary.counters import ring_bytes
from dlplacer.data_parallel.ternary.layout import BucketLayout, aligned


class GatherMessage:
    """The parts of a rank's message, or of the messages of all ranks, as views of their bytes.

    Parameters
    ----------
    data
        Bytes, shape (…, `size_bytes`).

    Attributes
    ----------
    words
        All of the message as words, the codes in front.
    """

    def __init__(self, layout: BucketLayout, dtype: torch.dtype, data: torch.Tensor) -> None:
        whole, scalers, _ = _ends(layout)
        self.words = data.view(torch.int32)
        self.whole = data[..., whole : whole + layout.whole_numel * layout.element_bytes].view(dtype)
        self.scalers = data[..., scalers : scalers + 4 * len(layout.coded)].view(torch.float32)

    @staticmethod
    def size_bytes(layout: BucketLayout) -> int:
        """Bytes of the message of one rank."""
        return _ends(layout)[2]


def _ends(layout: BucketLayout) -> tuple[int, int, int]:
    """Where codes, tensors in full precision and scalers end, at aligned places."""
    whole = aligned(4 * layout.words)
    scalers = aligned(whole + layout.whole_numel * layout.element_bytes)
    return whole, scalers, aligned(scalers + 4 * len(layout.coded))


def gather_codes(codec: BucketCodec, flat: torch.Tensor, step: int) -> Future[torch.Tensor]:
    """The averaged bucket, in the buffer of the bucket itself, once the codes of all ranks have come.

    Only the one collective is issued, and nothing waits in the callback: gloo runs callbacks on the two threads that
    serve its collectives, so that another one started there would never be served.
    """
    exact = as_float32(flat)
    decode = _started(codec, flat, exact, step, *codec.measured(exact))
    rows = codec.buffers["gathered"]
    sent = collectives.gather(rows, codec.buffers["message"], group=codec.group, async_op=True)
    return sent.get_future().then(decode)


def gather_shared(codec: BucketCodec, flat: torch.Tensor, step: int) -> torch.Tensor:
    """The same with the largest scaler of all ranks (eq. 4), which takes a collective of its own before."""
    exact = as_float32(flat)
    limits, scalers = codec.measured(exact)
    agree_on_scalers(codec, scalers)
    decode = _started(codec, flat, exact, step, limits, scalers)
    collectives.gather(codec.buffers["gathered"], codec.buffers["message"], group=codec.group)
    return decode(None)


def agree_on_scalers(codec: BucketCodec, scalers: torch.Tensor) -> None:
    """Replace scalers by the largest of all ranks (eq. 4), infinite where one of them is."""
    dist.all_reduce(scalers, dist.ReduceOp.MAX, group=codec.group)
    codec.counters.sent(ring_bytes(codec.ranks, 4 * scalers.numel()))


def _started(
    codec: BucketCodec,
    flat: torch.Tensor,
    exact: torch.Tensor,
    step: int,
    limits: torch.Tensor,
    scalers: torch.Tensor,
) -> Callable[[Future[object] | None], torch.Tensor]:
    """Fill this rank's message; what comes back decodes those of all ranks into the bucket."""
    layout, size = codec.layout, GatherMessage.size_bytes(codec.layout)
    own = codec.buffer("message", size, flat.device)
    gathered = codec.buffer("gathered", codec.ranks * size, flat.device)
    message = GatherMessage(layout, flat.dtype, own)
    message.scalers.copy_(scalers)
    codec.copy_whole(flat, message.whole)
    codec.encode(exact, step, limits, scalers, message.words[: layout.words])
    codec.counters.sent((codec.ranks - 1) * size)

    def decode(done: Future[object] | None) -> torch.Tensor:
        if done is not None:
            done.wait()  # Raises what went wrong on the wire.
        rows = GatherMessage(layout, flat.dtype, gathered.view(codec.ranks, size))
        with codec.counters.decoding(exact.device, layout.coded_numel):
            codec.kernels.decode(rows.words, rows.scalers.contiguous(), layout.table, exact)
        codec.place_coded(exact, flat)
        if layout.whole:
            codec.place_whole(mean_of_rows(rows.whole), flat)
        return flat

    return decode
