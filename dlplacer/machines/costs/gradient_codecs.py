"""Gradient codecs: bytes on the wire, cost on a device, effect on convergence, and averaging over workers.

A new codec needs an entry in `CODECS` and its transports. Then ``dlplacer hybrid --codecs`` lists it, the planner
considers each of its transports (`exchanges`), and the epochs of a strategy follow from the codec's noise
(`dlplacer.planning.hybrid.epochs`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.collectives import AlphaBeta

FLOAT_BITS = 32
_CODE_BITS = 2
_INT8_LEVELS = 127

# Noise of ternary codes: 1 + 1.007, the variance that random codes add to a Gaussian gradient clipped at 2.5 standard
# deviations (Wen et al. 2017, eq. 1-3 and 21).
CODECS: Mapping[str, float] = MappingProxyType({"none": 1.0, "fp16": 1.0, "ternary": 2.007})
"""Name in ``--codecs`` → noise variance of the decoded gradient ÷ that of the exact one; 1 needs no more steps."""

CollectiveCosts = Mapping[str, AlphaBeta]
"""Collective → its α-β cost over a given set of workers."""


@dataclass(frozen=True)
class GradientExchange:
    """A codec for gradients, and the collectives that carry its codes.

    `wire_bits`: Workers → (collective, its full vector's bits per gradient element), in series. `passes`: Number of
    workers → passes over the float32 gradient in device memory, which are assumed to be the whole cost of coding.
    `pass_s_per_byte`: Seconds of one pass per byte of float32 gradient; 0 makes coding free.
    """

    codec: str
    transport: str
    wire_bits: Callable[[int], tuple[tuple[str, float], ...]]
    passes: Callable[[int], float]
    most_workers: int | None = None
    pass_s_per_byte: float = 0.0

    @property
    def name(self) -> str:
        """Codec and transport, such as ``ternary/all-gather``."""
        return f"{self.codec}/{self.transport}"

    def fits(self, workers: int) -> bool:
        """True if the exchange can average over this number of workers."""
        return workers >= 1 and (self.most_workers is None or workers <= self.most_workers)

    def steps(self, workers: int) -> tuple[tuple[str, float], ...]:
        """Collectives in series, each with its full vector ÷ the float32 gradient in bytes; empty for one worker."""
        if not self.fits(workers):
            limit = "any number" if self.most_workers is None else f"1 to {self.most_workers}"
            raise InputError(f"exchange {self.name!r} of {workers} workers; it can average {limit}: choose another")
        found = self.wire_bits(workers) if workers > 1 else ()
        return tuple((collective, bits / FLOAT_BITS) for collective, bits in found)

    def ratio(self, workers: int) -> float:
        """Bytes per device of a float32 ring all-reduce ÷ bytes per device of this exchange; 1 for a single worker."""
        sent = sum((2.0 if collective == "all-reduce" else 1.0) * share for collective, share in self.steps(workers))
        return 2.0 / sent if sent else 1.0

    def codec_s_per_byte(self, workers: int) -> float:
        """Seconds of encoding and decoding on every device, per byte of float32 gradient; 0 for a single worker."""
        return self.pass_s_per_byte * self.passes(workers) if workers > 1 else 0.0

    def line(self, costs: CollectiveCosts, workers: int) -> AlphaBeta:
        """Seconds of the exchange, linear in the float32 gradient's bytes."""
        steps = self.steps(workers)
        return AlphaBeta(
            sum(costs[collective].latency_s for collective, _ in steps),
            sum(share * costs[collective].s_per_byte for collective, share in steps) + self.codec_s_per_byte(workers),
        )


def sum_bits(workers: int) -> int:
    """Bits of the sum of N workers' ternary codes, which has 2 N + 1 levels."""
    return (2 * workers).bit_length()


# fp16: encoding reads 4 bytes and writes 2, decoding reads 2 and writes 4. Ternary: encoding takes a pass each for the
# deviation, the largest element and the codes; decoding takes 2. all-gather: every device gets and decodes all codes.
# sums: the devices agree on scalers (no bytes), send codes to the device that sums a part, and get the sums back; each
# device decodes the codes that it sums and the sums. int8: codes are summed as 8-bit integers, exact in any order.
_EXCHANGES = (
    GradientExchange("none", "all-reduce", lambda workers: (("all-reduce", FLOAT_BITS),), lambda workers: 0.0),
    GradientExchange("fp16", "all-reduce", lambda workers: (("all-reduce", 16),), lambda workers: 3.0),
    GradientExchange(
        "ternary",
        "all-gather",
        lambda workers: (("all-gather", workers * _CODE_BITS),),
        lambda workers: 3.0 + 2.0 * workers,
    ),
    GradientExchange(
        "ternary",
        "sums",
        lambda workers: (("all-reduce", 0), ("all-to-all", _CODE_BITS), ("all-gather", sum_bits(workers))),
        lambda workers: 7.0,
    ),
    GradientExchange(
        "ternary", "int8", lambda workers: (("all-reduce", 0), ("all-reduce", 8)), lambda workers: 5.0, _INT8_LEVELS
    ),
)


def exchanges(
    memory_bytes_per_s: float | None = None, codecs: Iterable[str] = tuple(CODECS)
) -> tuple[GradientExchange, ...]:
    """The exchanges of these codecs, one for each transport.

    `memory_bytes_per_s`: Rate of the device's memory, which bounds coding; None makes coding free.
    """
    if memory_bytes_per_s is not None and not memory_bytes_per_s > 0:
        raise InputError(f"memory_bytes_per_s is {memory_bytes_per_s}; it must be positive, or None")
    chosen = tuple(codecs)
    for name in chosen:
        if name not in CODECS:
            raise InputError(f"there is no codec {name!r}; use some of {', '.join(CODECS)}")
    pass_s = 0.0 if memory_bytes_per_s is None else 1 / memory_bytes_per_s
    return tuple(replace(each, pass_s_per_byte=pass_s) for each in _EXCHANGES if each.codec in chosen)
