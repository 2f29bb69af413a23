"""Random numbers by counter: what element i draws depends on (seed, step, parameter name, rank) and i alone.

Order, buckets and threads therefore change nothing, and a training run that is resumed draws what it would have drawn.
The key is a cryptographic hash; an element's number is two rounds of multiplication and shift of its index, between
which the second half of the key enters, so that streams of different keys are not shifts of each other.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

SPREAD, FIRST, SECOND = 0x9E3779B9, 0x7FEB352D, 0x846CA68B
"""Multipliers: 2^32 ÷ the golden ratio, and the two of the integer hash of least known bias (lowbias32)."""

DRAW_BITS = 24
"""Bits of a number: what float32 holds exactly."""


def stream_key(seed: int, step: int, name: str, rank: int) -> tuple[int, int]:
    """The two 32-bit halves of the key of one tensor's stream."""
    said = struct.pack("<qqq", seed, step, rank) + name.encode()
    first, second = struct.unpack("<II", blake2b(said, digest_size=8).digest())
    return first, second


def stream_keys(seed: int, step: int, names: Sequence[str], rank: int) -> NDArray[np.uint32]:
    """The keys of several tensors, shape (tensors, 2)."""
    keys = [stream_key(seed, step, name, rank) for name in names]
    return np.array(keys, dtype=np.uint32).reshape(-1, 2)
