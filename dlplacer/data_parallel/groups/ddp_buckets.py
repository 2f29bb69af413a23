"""The buckets of torch's DistributedDataParallel, and the caps with which it builds planned buckets.

From the second step on, DDP visits the parameters in the order in which their gradients became ready in the first step.
A parameter joins the open bucket of its dtype. A bucket that reaches its cap is closed, and the next bucket of that
dtype takes the next cap of the list; the last cap repeats. Open buckets are closed at the end. Buckets are sent in the
order in which they were closed (torch's ``compute_bucket_assignment_by_size``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups
from dlplacer.machines.costs.collectives import AlphaBeta

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gradient:
    """A parameter's gradient, and the seconds from the start of the backward pass until it is finished."""

    name: str
    bytes: int
    dtype: str = "float32"
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DdpBucket:
    """Gradients that are sent in one message."""

    gradients: tuple[Gradient, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the bucket."""
        return tuple(gradient.name for gradient in self.gradients)

    @property
    def bytes(self) -> int:
        """Total bytes of the gradients."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def ready_s(self) -> float:
        """The time at which the last of the gradients is finished."""
        return max(gradient.ready_s for gradient in self.gradients)


def built_buckets(gradients: Sequence[Gradient], caps_bytes: Sequence[int]) -> tuple[DdpBucket, ...]:
    """The buckets that DDP builds from these gradients, which are in the order in which they become ready.

    `caps_bytes`: Caps of a dtype's first bucket, second bucket, and so on; the last cap repeats.
    """
    closed: list[DdpBucket] = []
    still_open: dict[str, list[Gradient]] = {}
    count: dict[str, int] = {}
    for gradient in gradients:
        filled = still_open.setdefault(gradient.dtype, [])
        filled.append(gradient)
        number = count.get(gradient.dtype, 0)
        if sum(each.bytes for each in filled) >= caps_bytes[min(number, len(caps_bytes) - 1)]:
            closed.append(DdpBucket(tuple(filled)))
            del still_open[gradient.dtype]
            count[gradient.dtype] = number + 1
    return (*closed, *(DdpBucket(tuple(filled)) for filled in still_open.values()))


def exchanged_s(buckets: Sequence[DdpBucket], line: AlphaBeta) -> float:
    """Seconds from the start of the backward pass until one channel has sent all buckets, in their order."""
    free_s = 0.0
    for bucket in buckets:
        free_s = max(free_s, bucket.ready_s) + line.time_s(bucket.bytes)
    return free_s


def caps_mb(caps_bytes: Sequence[int]) -> list[float]:
    """The caps for ``bucket_cap_mb_list``: MiB with fractions, which torch converts back to the same bytes."""
    # Division by a power of two is exact, so int(cap * 2**20) gives the same bytes.
    return [cap / MIB for cap in caps_bytes]


@dataclass(frozen=True)
class PlannedBuckets:
    """Caps, the buckets that DDP builds with them, and the seconds until the last bucket has arrived."""

    caps_bytes: tuple[int, ...]
    buckets: tuple[DdpBucket, ...]
    exchanged_s: float


def plan_buckets(gradients: Sequence[Gradient], line: AlphaBeta, cap_bytes: int | None = None) -> PlannedBuckets:
    """The caps of least makespan, with the buckets that DDP builds from them.

    With one dtype, the caps are optimal over all contiguous groups. All dtypes share one list of caps. With several
    dtypes, this list is the best among the lists that are optimal for one dtype and the lists with a single cap.

    Parameters
    ----------
    gradients
        Gradients in the order in which they become ready.
    line
        Cost of an exchange, linear in its bytes.
    cap_bytes
        Most bytes of a bucket; a larger gradient is sent alone.
    """
    dtypes = dict.fromkeys(gradient.dtype for gradient in gradients)
    candidates = [_optimal([each for each in gradients if each.dtype == dtype], line, cap_bytes) for dtype in dtypes]
    if len(dtypes) > 1:
        candidates += _uniform(sum(each.bytes for each in gradients), cap_bytes)
    return min((_built(gradients, caps, line) for caps in candidates), key=lambda planned: planned.exchanged_s)


def _built(gradients: Sequence[Gradient], caps_bytes: tuple[int, ...], line: AlphaBeta) -> PlannedBuckets:
    buckets = built_buckets(gradients, caps_bytes)
    return PlannedBuckets(caps_bytes, buckets, exchanged_s(buckets, line))


def _optimal(gradients: Sequence[Gradient], line: AlphaBeta, cap_bytes: int | None) -> tuple[int, ...]:
    """Bytes of the groups of least makespan, as caps: a bucket closes with the gradient that fills it to its cap."""
    chain = gradient_chain(gradients, line)
    groups = list(pairwise((0, *best_groups(chain, cap_bytes))))
    return tuple(sum(chain.bytes[before:last]) for before, last in reversed(groups))


def gradient_chain(gradients: Sequence[Gradient], line: AlphaBeta) -> LayerChain:
    """The chain in which every gradient is a layer; it computes from the end of earlier gradients to its own end."""
    ready_s, gaps_s = 0.0, []
    # A gradient finished out of order gets a time of 0: the order is autograd's, the times are the graph's.
    for gradient in gradients:
        gaps_s.append(max(0.0, gradient.ready_s - ready_s))
        ready_s = max(ready_s, gradient.ready_s)
    # A chain lists its layers in the order of the forward pass.
    listed = tuple(reversed(gradients))
    return LayerChain(
        line.latency_s,
        tuple(line.s_per_byte * gradient.bytes for gradient in listed),
        tuple(reversed(gaps_s)),
        tuple(gradient.bytes for gradient in listed),
        tuple(gradient.name for gradient in listed),
    )


def _uniform(total_bytes: int, cap_bytes: int | None) -> Iterator[tuple[int, ...]]:
    """Lists of one cap for all buckets: the total divided by powers of two."""
    most = total_bytes if cap_bytes is None else min(total_bytes, cap_bytes)
    for halvings in range(max(1, most.bit_length())):
        yield (max(1, most >> halvings),)
