"""The times at which a transfer holds each link of a route segment: eq. 11, and its cut-through form.

A route segment runs from device to device, through routers only. All times count from its start.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar

from dlplacer.core.topology import Link

Number = TypeVar("Number", float, Fraction)


def link_spans(
    links: Sequence[Link], size_bytes: int, delay: str, number: Callable[[float], Number]
) -> list[tuple[Number, Number]]:
    """[link] → begin and end, in seconds, of a tensor's hold on it; the last end is the tensor's arrival.

    Cut-through streams through all links at once, at the rate of the narrowest: each is held for bytes ÷ min B(l) +
    Σ L(l). Store-and-forward passes from link to link (eq. 11): each is held for bytes ÷ B(l) + L(l), in turn.

    Parameters
    ----------
    delay
        ``cut-through`` or ``store-and-forward``.
    number
        `float`, or `dlplacer.core.units.exact` for results that are exact.
    """
    if delay == "cut-through":
        narrowest = min(number(link.bytes_per_s) * link.count for link in links)
        whole = size_bytes / narrowest + sum((number(link.latency_s) for link in links), number(0))
        return [(number(0), whole)] * len(links)
    spans, here = [], number(0)
    for link in links:
        spans.append((here, here + link_delay_s(link, size_bytes, number)))
        here = spans[-1][1]
    return spans


def link_delay_s(link: Link, size_bytes: int, number: Callable[[float], Number]) -> Number:
    """bytes ÷ B(l) + L(l): the term of a single link in eq. 11."""
    return size_bytes / (number(link.bytes_per_s) * link.count) + number(link.latency_s)
