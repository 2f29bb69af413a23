"""The α-β model: a message, or a whole collective, takes a latency plus a time per byte."""

import sys
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Seconds as a line over bytes: α + β · bytes.

    The cost of a link, of a route and of a collective over many devices all have this form, so all are of this type.
    For a collective the bytes are those of the whole vector on one device.
    """

    latency_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        for value in (self.latency_s, self.s_per_byte):
            if not 0 <= value <= sys.float_info.max:
                raise InputError(f"alpha beta: a time is {value}; it must be finite and at least 0")

    def time_s(self, size_bytes: float) -> float:
        """Seconds for this many bytes."""
        if not 0 <= size_bytes <= sys.float_info.max:
            raise InputError(f"a message of {size_bytes} bytes; the size must be finite and at least 0")
        return self.latency_s + self.s_per_byte * size_bytes

    def times(self, rounds: float, share: float = 1.0) -> "AlphaBeta":
        """So many messages one after another, each carrying this share of the bytes."""
        return AlphaBeta(rounds * self.latency_s, rounds * share * self.s_per_byte)

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        """One after the other, over the same bytes."""
        return AlphaBeta(self.latency_s + other.latency_s, self.s_per_byte + other.s_per_byte)


FREE = AlphaBeta(0.0, 0.0)
"""What communication costs where there is none."""
