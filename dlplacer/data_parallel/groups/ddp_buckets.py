"""How torch's DistributedDataParallel fills its buckets, and the caps that make it build given ones.

From the second step on, DDP goes through the parameters in the order in which their gradients got ready in the first
step. A parameter joins the open bucket of its dtype; a bucket that has reached its cap is closed, and the next one of
that dtype takes the next cap of the list, the last cap again and again. What is open at the end closes as it is.
Buckets are sent in the order in which they were closed (torch's ``compute_bucket_assignment_by_size``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Gradient:
    """A parameter's gradient.

    Attributes
    ----------
    dtype
        Gradients of two dtypes never share a bucket.
    ready_s
        Seconds from the start of the backward pass until it is finished.
    """

    name: str
    bytes: int
    dtype: str = "float32"
    ready_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DdpBucket:
    """Gradients that travel in one message."""

    gradients: tuple[Gradient, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in the order of the bucket."""
        return tuple(gradient.name for gradient in self.gradients)

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(gradient.bytes for gradient in self.gradients)

    @property
    def ready_s(self) -> float:
        """When the last of the gradients is finished."""
        return max(gradient.ready_s for gradient in self.gradients)


def built_buckets(gradients: Sequence[Gradient], caps_bytes: Sequence[int]) -> tuple[DdpBucket, ...]:
    """The buckets that DDP builds of these gradients, listed in the order in which they get ready.

    Parameters
    ----------
    caps_bytes
        Of the first bucket of a dtype, of its second, and so on; the last holds for all that follow.
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


def exchanged_s(buckets: Sequence[DdpBucket], startup_s: float, s_per_byte: float) -> float:
    """Seconds from the start of the backward pass until the last bucket has arrived, over one channel in order."""
    free_s = 0.0
    for bucket in buckets:
        free_s = max(free_s, bucket.ready_s) + startup_s + s_per_byte * bucket.bytes
    return free_s


def caps_mb(caps_bytes: Sequence[int]) -> list[float]:
    """As ``bucket_cap_mb_list`` takes them: MiB with their fractions, which torch turns into the same bytes again."""
    # Division by a power of two is exact, so int(cap * 2**20) loses nothing.
    return [cap / MIB for cap in caps_bytes]
