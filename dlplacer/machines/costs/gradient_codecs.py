"""Gradient compressors: bytes on the wire, cost on a device, effect on convergence, and averaging over workers.

A codec is added here, as an entry of `CODECS` and of the transports: ``dlplacer hybrid --codecs`` lists it, the planner
considers each of its transports (`exchanges`), and the epochs of a strategy follow from its noise
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

# Noise of ternary codes: 1 + 1.007, what codes drawn from a Gaussian gradient clipped at 2.5 standard deviations add
# (Wen et al. 2017, eq. 1-3 and 21).
CODECS: Mapping[str, float] = MappingProxyType({"none": 1.0, "fp16": 1.0, "ternary": 2.007})
"""Name, as ``--codecs`` takes it → variance of the decoded gradient's noise ÷ the exact gradient's; 1 leaves steps."""

CollectiveCosts = Mapping[str, AlphaBeta]
"""Collective → its line over a given set of workers."""


@dataclass(frozen=True)
class GradientExchange:
    """Gradients as a codec writes them, and the collectives that carry them.

    `wire_bits`: Number of workers → (collective, bits per element of its full vector), one after another. `passes`:
    Number of workers → passes over the float32 gradient in device memory, which coding is assumed to be bound by.
    `pass_s_per_byte`: Seconds that a device takes to pass over a byte of float32 gradient; 0 makes coding free.
    """

    codec: str
    transport: str
    wire_bits: Callable[[int], tuple[tuple[str, float], ...]]
    passes: Callable[[int], float]
    most_workers: int | None = None
    pass_s_per_byte: float = 0.0

    @property
    def name(self) -> str:
        """Codec and transport, as in ``ternary/all-gather``."""
        return f"{self.codec}/{self.transport}"

    def fits(self, workers: int) -> bool:
        """True if the exchange can average over so many workers."""
        return workers >= 1 and (self.most_workers is None or workers <= self.most_workers)

    def steps(self, workers: int) -> tuple[tuple[str, float], ...]:
        """(Collective, its full vector as a share of the float32 gradient), one after another; none for one worker."""
        if not self.fits(workers):
            limit = "any number" if self.most_workers is None else f"1 to {self.most_workers}"
            raise InputError(f"exchange {self.name!r} of {workers} workers; it can average {limit}: choose another")
        found = self.wire_bits(workers) if workers > 1 else ()
        return tuple((collective, bits / FLOAT_BITS) for collective, bits in found)

    def ratio(self, workers: int) -> float:
        """Bytes that a float32 ring all-reduce sends per device ÷ those that this sends; 1 for a single worker."""
        sent = sum((2.0 if collective == "all-reduce" else 1.0) * share for collective, share in self.steps(workers))
        return 2.0 / sent if sent else 1.0

    def codec_s_per_byte(self, workers: int) -> float:
        """Seconds of encoding and decoding on every device, per byte of float32 gradient; 0 for a single worker."""
        return self.pass_s_per_byte * self.passes(workers) if workers > 1 else 0.0

    def line(self, costs: CollectiveCosts, workers: int) -> AlphaBeta:
        """Seconds of the whole exchange over the bytes of the float32 gradient."""
        steps = self.steps(workers)
        return AlphaBeta(
            sum(costs[collective].latency_s for collective, _ in steps),
            sum(share * costs[collective].s_per_byte for collective, share in steps) + self.codec_s_per_byte(workers),
        )


def sum_bits(workers: int) -> int:
    """Bits of a sum of so many ternary codes: it has 2 N + 1 levels."""
    return (2 * workers).bit_length()


# fp16: encoding reads 4 bytes and writes 2, decoding reads 2 and writes 4. Ternary: encoding passes for the deviation,
# the largest element and the codes, decoding takes 2. all-gather: everybody gets and decodes everybody's codes. sums:
# scalers agreed on by a message without bytes, codes to the device that sums their part, sums back to all; it decodes
# what it sums and what comes back. int8: codes summed as 8-bit integers, exactly and in any order.
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
    """Every transport of these codecs.

    `memory_bytes_per_s`: Rate of the device's memory, which bounds coding; None: coding costs nothing.
    """
    if memory_bytes_per_s is not None and not memory_bytes_per_s > 0:
        raise InputError(f"memory_bytes_per_s is {memory_bytes_per_s}; it must be positive, or None")
    chosen = tuple(codecs)
    for name in chosen:
        if name not in CODECS:
            raise InputError(f"there is no codec {name!r}; use some of {', '.join(CODECS)}")
    pass_s = 0.0 if memory_bytes_per_s is None else 1 / memory_bytes_per_s
    return tuple(replace(each, pass_s_per_byte=pass_s) for each in _EXCHANGES if each.codec in chosen)
