"""Bytes that every rank sends to average a gradient of ternary codes, and where each transport stops paying."""

import math

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.gradient_codecs import GradientExchange, exchanges

_FLOAT_BYTES = 4


def ideal_pull_ratio(ranks: int) -> float:
    """32 ÷ log2(2N + 1): what sums of N ternary codes can save when they are pulled (section 3).

    Raises
    ------
    InputError
        If there is no rank.
    """
    if ranks < 1:
        raise InputError(f"there are {ranks} ranks; give at least 1")
    return 32 / math.log2(2 * ranks + 1)


def exchange_named(name: str) -> GradientExchange:
    """The exchange of this name, as in ``ternary/all-gather``; coding costs no time.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    known = {exchange.name: exchange for exchange in exchanges()}
    if name not in known:
        raise InputError(f"there is no exchange {name!r}; use one of {', '.join(known)}")
    return known[name]


def sent_bytes(name: str, elements: int, ranks: int) -> float:
    """Bytes that a rank sends to average this many elements."""
    ring_bytes = 2 * _FLOAT_BYTES * elements * (ranks - 1) / ranks
    return ring_bytes / exchange_named(name).ratio(ranks)


def stops_paying_at(name: str, against: str = "none/all-reduce", up_to: int = 4096) -> int | None:
    """Fewest ranks at which an exchange sends as many bytes as another, or cannot be done; None if there are none."""
    one, other = exchange_named(name), exchange_named(against)
    for ranks in range(2, up_to + 1):
        if not one.fits(ranks) or one.ratio(ranks) <= other.ratio(ranks):
            return ranks
    return None
