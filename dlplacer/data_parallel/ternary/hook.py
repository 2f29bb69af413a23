"""The communication hook of DistributedDataParallel."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.futures import Future

from dlplacer.data_parallel.ternary.bucket_codec import BucketCodec
from dlplacer.data_parallel.ternary.counters import ring_bytes
from dlplacer.data_parallel.ternary.gather_transport import gather_codes, gather_shared
from dlplacer.data_parallel.ternary.settings import SUMS
from dlplacer.data_parallel.ternary.state import TernaryState
from dlplacer.data_parallel.ternary.sums_transport import add_codes


def ternary_hook(
    state: TernaryState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[torch.Tensor]:
    """The averaged gradients of a bucket, sent with two bits per element.

    Use it as ``ddp.register_comm_hook(TernaryState(), ternary_hook)``.

    Parameters
    ----------
    state
        One for each model and rank.
    bucket
        As DistributedDataParallel gives it.

    Raises
    ------
    InputError
        If this is not called by DistributedDataParallel, if ``exclude`` names no parameter, if the state serves
        another model or group, or if a gradient is sparse.
    """
    codec, step = state.begin(bucket)
    flat = bucket.buffer()
    if not codec.layout.coded:
        return _all_reduced(codec, flat)
    if not codec.takes_several_collectives:
        return gather_codes(codec, flat, step)
    exchange = add_codes if codec.transport == SUMS else gather_shared
    if state.thread is not None:
        return state.thread.submit(lambda: exchange(codec, flat, step))
    return _on_own_stream(lambda: exchange(codec, flat, step), flat.device)


def _all_reduced(codec: BucketCodec, flat: torch.Tensor) -> Future[torch.Tensor]:
    """A bucket without codes, averaged as DistributedDataParallel does it."""
    flat.div_(codec.ranks)
    codec.counters.sent(ring_bytes(codec.ranks, codec.layout.full_bytes))
    sent = dist.all_reduce(flat, group=codec.group, async_op=True)
    return sent.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def _on_own_stream(exchange: Callable[[], torch.Tensor], device: torch.device) -> Future[torch.Tensor]:
    """Several collectives on a GPU: they only queue work, so that nothing has to wait for them on the host."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    result: Future[torch.Tensor] = Future(devices=[device])
    with torch.cuda.stream(stream):
        result.set_result(exchange())
    return result
