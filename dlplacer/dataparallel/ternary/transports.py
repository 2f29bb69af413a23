"""Bytes that every rank sends to average a gradient, per transport, and where each stops paying."""

import math
from collections.abc import Callable, Mapping

from dlplacer.errors import InputError

FLOAT_BYTES = 4
CODE_BITS = 2
MAX_INT8_RANKS = 127
"""Sums of more ternary codes than this do not fit into int8."""


def ideal_push_ratio() -> float:
    """32 ÷ log2 3: what ternary codes can save when they are pushed (section 3)."""
    return 32 / math.log2(3)


def ideal_pull_ratio(ranks: int) -> float:
    """32 ÷ log2(2N + 1): what sums of N ternary codes can save when they are pulled (section 3)."""
    return 32 / math.log2(_checked(ranks) * 2 + 1)


def sum_bits(ranks: int) -> int:
    """Whole bits that a sum of N ternary codes needs: it has 2N + 1 levels."""
    return math.ceil(math.log2(2 * _checked(ranks) + 1))


def float32_ring_bytes(elements: int, ranks: int) -> float:
    """Ring all-reduce of float32: reduce-scatter and all-gather."""
    return 2 * FLOAT_BYTES * elements * (_checked(ranks) - 1) / ranks


def float16_ring_bytes(elements: int, ranks: int) -> float:
    """Ring all-reduce of float16."""
    return float32_ring_bytes(elements, ranks) / 2


def code_all_gather_bytes(elements: int, ranks: int) -> float:
    """Every rank's 2-bit codes go to every other rank; no scaler needs to be shared."""
    return (_checked(ranks) - 1) * elements * CODE_BITS / 8


def code_all_to_all_bytes(elements: int, ranks: int) -> float:
    """2-bit codes to the rank that sums them, sums of ⌈log2(2N + 1)⌉ bits back to all: the paper's push and pull."""
    return (_checked(ranks) - 1) / ranks * elements * (CODE_BITS + sum_bits(ranks)) / 8


def int8_ring_bytes(elements: int, ranks: int) -> float:
    """Ring all-reduce of int8 sums under a shared scaler: exact, and the same whatever the order of ranks.

    Raises
    ------
    InputError
        If there are more than 127 ranks, whose sums overflow.
    """
    if ranks > MAX_INT8_RANKS:
        raise InputError(f"int8 sums hold {MAX_INT8_RANKS} ranks, not {ranks}; use all-to-all")
    return 2 * elements * (_checked(ranks) - 1) / ranks


TRANSPORTS: Mapping[str, Callable[[int, int], float]] = {
    "float32": float32_ring_bytes,
    "float16": float16_ring_bytes,
    "all-gather": code_all_gather_bytes,
    "all-to-all": code_all_to_all_bytes,
    "int8": int8_ring_bytes,
}
"""Transport → bytes per rank of (elements, ranks)."""


def byte_ratio(transport: str, ranks: int) -> float:
    """Bytes of the float32 ring ÷ bytes of the transport, 2 ranks or more."""
    if ranks < 2:
        raise InputError(f"{ranks} ranks exchange nothing; a ratio of bytes needs at least 2")
    return float32_ring_bytes(1, ranks) / TRANSPORTS[transport](1, ranks)


def stops_paying_at(transport: str, against: str = "float32", up_to: int = 4096) -> int | None:
    """Fewest ranks at which the transport sends as many bytes as another, or more; None if not within `up_to`."""
    for ranks in range(2, up_to + 1):
        if transport == "int8" and ranks > MAX_INT8_RANKS:
            return ranks
        if TRANSPORTS[transport](1, ranks) >= TRANSPORTS[against](1, ranks):
            return ranks
    return None


def _checked(ranks: int) -> int:
    if ranks < 1:
        raise InputError(f"there are {ranks} ranks; give at least 1")
    return ranks
