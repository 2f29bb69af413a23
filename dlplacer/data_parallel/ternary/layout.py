"""Where the parts of a bucket stand: in the flat gradient, and in the message that carries it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

CODES_PER_WORD = 16
_ALIGNED_BYTES = 16


def words_for(numel: int) -> int:
    """32-bit words that hold two bits for each of so many elements."""
    return -(-numel // CODES_PER_WORD)


def sum_bits(ranks: int) -> int:
    """Bits of the sum of so many codes, which has 2 N + 1 levels."""
    return (2 * ranks).bit_length()


def aligned(size_bytes: int) -> int:
    """The next size at which elements of any type may begin."""
    return -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """A parameter's gradient inside a flat buffer: ``numel`` elements from ``start``."""

    name: str
    start: int
    numel: int

    @property
    def end(self) -> int:
        """One behind the last element."""
        return self.start + self.numel


@dataclass(frozen=True)
class BucketLayout:
    """The gradients of a bucket: those that become codes, and those that travel in full precision.

    Attributes
    ----------
    names
        Of all tensors, in the order of the flat gradient.
    coded, whole
        In the same order; together they are all of it.
    element_bytes
        Of an element in full precision.
    """

    names: tuple[str, ...]
    coded: tuple[TensorSpan, ...]
    whole: tuple[TensorSpan, ...]
    element_bytes: int

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """(start, numel, first word) of every coded tensor, for the kernels; shape (tensors, 3)."""
        sizes = [words_for(span.numel) for span in self.coded]
        firsts = np.concatenate([[0], np.cumsum(sizes)])[: len(sizes)]
        rows = [(span.start, span.numel, int(first)) for span, first in zip(self.coded, firsts, strict=True)]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def words(self) -> int:
        """32-bit words of all codes."""
        return sum(words_for(span.numel) for span in self.coded)

    @cached_property
    def coded_numel(self) -> int:
        """Elements that become codes."""
        return sum(span.numel for span in self.coded)

    @cached_property
    def whole_numel(self) -> int:
        """Elements that travel in full precision."""
        return sum(span.numel for span in self.whole)

    @property
    def full_bytes(self) -> int:
        """The flat gradient in full precision."""
        return (self.coded_numel + self.whole_numel) * self.element_bytes


def bucket_layout(
    tensors: Sequence[tuple[str, int]], element_bytes: int, is_coded: Callable[[str, int], bool]
) -> BucketLayout:
    """The layout of a bucket whose flat gradient holds these (name, numel) one behind the other."""
    coded: list[TensorSpan] = []
    whole: list[TensorSpan] = []
    start = 0
    for name, numel in tensors:
        (coded if is_coded(name, numel) else whole).append(TensorSpan(name, start, numel))
        start += numel
    return BucketLayout(tuple(name for name, _ in tensors), tuple(coded), tuple(whole), element_bytes)
