"""Which transport carries a bucket fastest, by the rates of link and codec, measured where they are used."""

import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from dlplacer.data_parallel.ternary import collectives
from dlplacer.data_parallel.ternary.gather_transport import GatherMessage
from dlplacer.data_parallel.ternary.kernels import TernaryKernels
from dlplacer.data_parallel.ternary.layout import BucketLayout, sum_bits, words_for
from dlplacer.data_parallel.ternary.settings import GATHER, SUMS
from dlplacer.data_parallel.ternary.sums_transport import SumParts
from dlplacer.machines.costs.alpha_beta import AlphaBeta

_SMALL_BYTES, _LARGE_BYTES = 1 << 10, 1 << 18
"""Messages whose times give the line: one of latency alone, one whose bytes take most of the time on links
of up to some Gbit/s, and a quarter of a second at 8 Mbit/s."""

_ELEMENTS = 1 << 18
_REPEATS = 3


@dataclass(frozen=True)
class TransportRates:
    """What decides between the transports, for a given number of ranks.

    Attributes
    ----------
    gather_latency_s, gather_s_per_byte
        Of an all-gather, per byte that a rank receives; ``exchange_…``: of an all-to-all.
    decode_s, add_s, spread_s
        Seconds per element of the gradient: to decode the codes of all ranks, to add them, to decode the sums.
    """

    gather_latency_s: float
    gather_s_per_byte: float
    exchange_latency_s: float
    exchange_s_per_byte: float
    decode_s: float
    add_s: float
    spread_s: float

    def as_json(self) -> dict[str, float]:
        """The rates by name."""
        return asdict(self)


def transport_seconds(layout: BucketLayout, ranks: int, rates: TransportRates) -> dict[str, float]:
    """Seconds that a bucket takes behind its encoding, by transport.

    The agreement on scalers counts as two all-gathers without bytes: a reduction and a broadcast.
    """
    gather = AlphaBeta(rates.gather_latency_s, rates.gather_s_per_byte)
    exchange = AlphaBeta(rates.exchange_latency_s, rates.exchange_s_per_byte)
    parts, numel = SumParts.of(layout, ranks), layout.coded_numel
    return {
        GATHER: gather.time_s((ranks - 1) * GatherMessage.size_bytes(layout)) + numel * rates.decode_s,
        SUMS: 2 * gather.latency_s
        + exchange.time_s((ranks - 1) * parts.sent_bytes)
        + gather.time_s((ranks - 1) * parts.returned_bytes)
        + numel * (rates.add_s / ranks + rates.spread_s),
    }


def fastest_transport(layout: BucketLayout, ranks: int, rates: TransportRates) -> str:
    """The name of the faster one; of two that are equal, the one with one collective."""
    seconds = transport_seconds(layout, ranks, rates)
    return min((GATHER, SUMS), key=lambda name: seconds[name])


def measured_rates(group: dist.ProcessGroup, kernels: TernaryKernels, device: torch.device) -> TransportRates:
    """The rates as the slowest rank sees them, the same on all; every rank of the group takes part."""
    ranks = group.size()

    def gathering(size_bytes: int) -> Callable[[], object]:
        own, everyone = _bytes(size_bytes, device), _bytes(ranks * size_bytes, device)
        return lambda: collectives.gather(everyone, own, group=group)

    def exchanging(size_bytes: int) -> Callable[[], object]:
        given, taken = _bytes(ranks * size_bytes, device), _bytes(ranks * size_bytes, device)
        return lambda: dist.all_to_all_single(taken, given, group=group)

    lines = [*astuple(_line(gathering, ranks)), *astuple(_line(exchanging, ranks))]
    slowest = torch.tensor([*lines, *_codec_seconds(kernels, ranks, device)], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return TransportRates(*slowest.tolist())


def _line(collective: Callable[[int], Callable[[], object]], ranks: int) -> AlphaBeta:
    small_s, large_s = (_median_s(collective(size)) for size in (_SMALL_BYTES, _LARGE_BYTES))
    s_per_byte = max(0.0, large_s - small_s) / ((ranks - 1) * (_LARGE_BYTES - _SMALL_BYTES))
    return AlphaBeta(max(0.0, small_s - s_per_byte * (ranks - 1) * _SMALL_BYTES), s_per_byte)


def _codec_seconds(kernels: TernaryKernels, ranks: int, device: torch.device) -> tuple[float, float, float]:
    """Seconds per element to decode, add and spread."""
    table = np.array([[0, _ELEMENTS, 0]], dtype=np.int64)
    words = torch.zeros(ranks, words_for(_ELEMENTS), dtype=torch.int32, device=device)
    planes = torch.zeros(1, sum_bits(ranks), words.shape[1] // 2, dtype=torch.int32, device=device)
    scalers, mean = torch.ones(ranks, 1, device=device), torch.zeros(_ELEMENTS, device=device)
    decode_s = _median_s(lambda: kernels.decode(words, scalers, table, mean))
    add_s = _median_s(lambda: kernels.add(words, planes[0]))
    spread_s = _median_s(lambda: kernels.spread(planes, ranks, scalers[0], table, mean))
    return decode_s / _ELEMENTS, add_s / _ELEMENTS, spread_s / _ELEMENTS


def _median_s(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(_REPEATS):
        _synchronize()
        begin = time.perf_counter()
        work()
        _synchronize()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _bytes(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8, device=device)
