"""The caps with which DDP's buckets are those of least makespan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlplacer.data_parallel.groups.ddp_buckets import DdpBucket, Gradient, built_buckets, exchanged_s
from dlplacer.data_parallel.groups.exact_groups import best_groups
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.machines.costs.alpha_beta import AlphaBeta


@dataclass(frozen=True)
class PlannedBuckets:
    """Caps, and what DDP builds with them.

    Attributes
    ----------
    exchanged_s
        Seconds from the start of the backward pass until the last bucket has arrived.
    """

    caps_bytes: tuple[int, ...]
    buckets: tuple[DdpBucket, ...]
    exchanged_s: float


def plan_buckets(gradients: Sequence[Gradient], line: AlphaBeta, cap_bytes: int | None = None) -> PlannedBuckets:
    """The caps of least makespan.

    With one dtype this is the optimum over all contiguous groups. One list of caps serves every dtype; with several it
    is the best of the lists that are optimal for one dtype alone, and of lists with one cap.

    Parameters
    ----------
    gradients
        In the order in which they get ready.
    line
        Seconds of an exchange over its bytes.
    cap_bytes
        Most bytes of a bucket; a gradient above it travels alone.
    """
    dtypes = dict.fromkeys(gradient.dtype for gradient in gradients)
    candidates = [_optimal([each for each in gradients if each.dtype == dtype], line, cap_bytes) for dtype in dtypes]
    if len(dtypes) > 1:
        candidates += _uniform(sum(each.bytes for each in gradients), cap_bytes)
    return min((_built(gradients, caps, line) for caps in candidates), key=lambda planned: planned.exchanged_s)


def _built(gradients: Sequence[Gradient], caps_bytes: tuple[int, ...], line: AlphaBeta) -> PlannedBuckets:
    buckets = built_buckets(gradients, caps_bytes)
    return PlannedBuckets(caps_bytes, buckets, exchanged_s(buckets, line.latency_s, line.s_per_byte))


def _optimal(gradients: Sequence[Gradient], line: AlphaBeta, cap_bytes: int | None) -> tuple[int, ...]:
    """Bytes of the groups of least makespan: a bucket closes with the gradient that fills it to its cap."""
    chain = gradient_chain(gradients, line)
    groups = list(pairwise((0, *best_groups(chain, cap_bytes))))
    return tuple(sum(chain.bytes[before:last]) for before, last in reversed(groups))


def gradient_chain(gradients: Sequence[Gradient], line: AlphaBeta) -> LayerChain:
    """Gradients as a chain, every one a layer that computes from when those before it are finished until it is."""
    ready_s, gaps_s = 0.0, []
    # A gradient finished out of order takes no time of its own: the order is the engine's, the times are the graph's.
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
    """One cap for all buckets: the total divided by powers of two."""
    most = total_bytes if cap_bytes is None else min(total_bytes, cap_bytes)
    for halvings in range(max(1, most.bit_length())):
        yield (max(1, most >> halvings),)
