"""The communication hook of DistributedDataParallel, and its two transports for codes.

``all-gather``: every rank gets the codes of every rank, in one collective. ``sums``: every rank adds the codes of a
part of the bucket and sends the sums to all. Scalers are then shared (eq. 4), so that codes add up as integers, exactly
and in any order. A sum has ⌈log2(2 N + 1)⌉ bits, as from the parameter servers of Wen et al.; every rank is a server.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from dlplacer.data_parallel.ternary.bucket import BucketCodec, as_float32, planes_shape, ring_bytes
from dlplacer.data_parallel.ternary.collectives import OrderedThread, gather, naming_the_peers
from dlplacer.data_parallel.ternary.state import SUMS, TernaryState
from dlplacer.data_parallel.ternary.torch_kernels import BLOCK
from dlplacer.machines.costs.gradient_codecs import sum_bits


def ternary_hook(
    state: TernaryState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> Future[torch.Tensor]:
    """The averaged gradients of a bucket, sent with two bits per element.

    Use it as ``ddp.register_comm_hook(TernaryState(), ternary_hook)``.

    Parameters
    ----------
    state
        The state of this model on this rank.
    bucket
        The bucket from DistributedDataParallel.

    Raises
    ------
    InputError
        If the caller is not DistributedDataParallel, a pattern of ``exclude`` matches no parameter, the state serves
        another model, or a gradient is sparse.
    """
    codec, step = state.begin(bucket)
    flat = bucket.buffer()
    if not codec.layout.coded:
        works, finish = _reduce_whole(codec, flat)
        return _when_done(works, lambda: finish() or flat)
    if state.takes_one_round(codec):
        return _gather_codes(codec, flat, step)

    def exchange() -> torch.Tensor:
        with naming_the_peers(codec.group, f"the exchange of scalers and codes in step {step}"):
            return _exchange(codec, flat, step)

    if flat.device.type != "cpu":
        return _on_own_stream(exchange, flat.device)
    state.thread = state.thread or OrderedThread(codec.group)
    codec.group = state.thread.group
    return state.thread.submit(exchange)


def _gather_codes(codec: BucketCodec, flat: torch.Tensor, step: int) -> Future[torch.Tensor]:
    """A future of the averaged bucket, which needs the codes of all ranks.

    No collective starts in the callback, because gloo runs callbacks on the two threads that serve its collectives and
    would never serve a collective started there.
    """
    exact, what = as_float32(flat), f"the all-gather of codes in step {step}"
    sent, decode = _gather_message(codec, flat, exact, step, *codec.measured(exact))
    with naming_the_peers(codec.group, what):
        works, place_whole = _reduce_whole(codec, flat)
        works.append(gather(*sent, group=codec.group, async_op=True))

    def finish() -> torch.Tensor:
        decode()
        place_whole()
        return flat

    return _when_done(works, finish, lambda: naming_the_peers(codec.group, what))


def _exchange(codec: BucketCodec, flat: torch.Tensor, step: int) -> torch.Tensor:
    """The averaged bucket with the largest scaler of all ranks (eq. 4), by several collectives in series."""
    exact = as_float32(flat)
    limits, scalers = codec.measured(exact)
    dist.all_reduce(scalers, dist.ReduceOp.MAX, group=codec.group)
    codec.counters.sent(ring_bytes(codec.ranks, scalers.nbytes))
    works, place_whole = _reduce_whole(codec, flat)
    if codec.transport == SUMS:
        _add_codes(codec, flat, exact, step, limits, scalers)
    else:
        sent, decode = _gather_message(codec, flat, exact, step, limits, scalers)
        gather(*sent, group=codec.group)
        decode()
    for work in works:
        work.wait()
    place_whole()
    return flat


def _gather_message(
    codec: BucketCodec, flat: torch.Tensor, exact: torch.Tensor, step: int, limits: torch.Tensor, scalers: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor], Callable[[], None]]:
    """(Output, input) of an all-gather of codes and scalers, and a function that decodes the output into the bucket."""
    shape, tensors = planes_shape(codec.layout.blocks), len(codec.layout.coded)
    words = int(np.prod(shape))
    own = codec.buffer("message", (words + tensors,), torch.int32, flat.device)
    gathered = codec.buffer("gathered", (codec.ranks * (words + tensors),), torch.int32, flat.device)
    codec.encode(exact, step, limits, scalers, own[:words].view(shape))
    own[words:] = scalers.view(torch.int32)
    codec.counters.sent((codec.ranks - 1) * own.nbytes)

    def decode() -> None:
        rows = gathered.view(codec.ranks, -1)
        planes, others = rows[:, :words].contiguous(), rows[:, words:].contiguous().view(torch.float32)
        codec.decode(planes.view(codec.ranks, *shape), 1, others, flat)

    return (gathered, own), decode


def _add_codes(
    codec: BucketCodec, flat: torch.Tensor, exact: torch.Tensor, step: int, limits: torch.Tensor, scalers: torch.Tensor
) -> None:
    ranks, device = codec.ranks, flat.device
    part, bits = -(-codec.layout.blocks // ranks), sum_bits(ranks)
    sent = codec.buffer("sent", planes_shape(ranks * part), torch.int32, device)
    received = codec.buffer("received", (ranks, *planes_shape(part)), torch.int32, device)
    sums = codec.buffer("sums", (part * BLOCK,), torch.float32, device)
    own = codec.buffer("own sums", planes_shape(part, bits), torch.int32, device)
    everyones = codec.buffer("everyone's sums", (1, *planes_shape(ranks * part, bits)), torch.int32, device)
    codec.encode(exact, step, limits, scalers, sent)
    dist.all_to_all_single(received.view(-1), sent.view(-1), group=codec.group)
    with codec.counters.coding("decode", device):
        whole_part = np.array([[0, len(sums), 0]], dtype=np.int64)
        codec.kernels.decode(received, 1, whole_part, torch.ones(ranks, 1, device=device), 1.0, sums)
        codec.kernels.pack(sums, ranks, own)
    gather(everyones.view(-1), own.view(-1), group=codec.group)
    codec.counters.sent((ranks - 1) * (sent.nbytes / ranks + own.nbytes))
    codec.decode(everyones, ranks, scalers.unsqueeze(0), flat)


def _reduce_whole(codec: BucketCodec, flat: torch.Tensor) -> tuple[list[Any], Callable[[], None]]:
    """The started all-reduce of the tensors in full precision, and a function that copies the mean to the bucket."""
    spans = codec.layout.whole
    if not spans:
        return [], lambda: None
    whole = torch.cat([flat[span.place] for span in spans]) / codec.ranks
    codec.counters.sent(ring_bytes(codec.ranks, whole.nbytes))
    work = dist.all_reduce(whole, group=codec.group, async_op=True)

    def place() -> None:
        for span, mean in zip(spans, torch.split(whole, [span.numel for span in spans]), strict=True):
            flat[span.place] = mean

    return [work], place


def _when_done(
    works: list[Any], finish: Callable[[], torch.Tensor], naming: Callable[[], Any] | None = None
) -> Future[torch.Tensor]:
    def done(future: Future[list[Future[Any]]]) -> torch.Tensor:
        with naming() if naming else contextlib.nullcontext():
            for each in future.value():
                each.wait()
        return finish()

    return torch.futures.collect_all([work.get_future() for work in works]).then(done)


def _on_own_stream(exchange: Callable[[], torch.Tensor], device: torch.device) -> Future[torch.Tensor]:
    """The result of several collectives on a GPU; they only queue work, so the host does not wait for them."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    result: Future[torch.Tensor] = Future(devices=[device])
    with torch.cuda.stream(stream):
        result.set_result(exchange())
    return result
