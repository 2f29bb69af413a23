"""Gradient compressors: bytes on the wire, cost on a device, and effect on convergence.

A codec is added here, as an entry of `CODECS`: ``dlplacer hybrid --codecs`` lists it, the planner considers each of its
transports (`dlplacer.machines.costs.gradient_exchange`), and the epochs of a strategy follow from its noise
(`dlplacer.planning.hybrid.epochs`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

FLOAT_BITS = 32
_CODE_BITS = 2
_INT8_LEVELS = 127


@dataclass(frozen=True, slots=True)
class Transport:
    """The collectives that carry a codec's codes.

    Attributes
    ----------
    wire_bits
        Number of workers → (collective, bits per element of its full vector), one after another. A ``push`` is what
        every worker sends to parameter servers, which share it out among themselves, a ``pull`` what it gets back; the
        other collectives are those of `dlplacer.machines.costs.collectives`.
    sums
        True if codes are added before they are decoded; else a device decodes those of every worker.
    decodes
        Times that a device decodes the gradient if codes are added.
    most_workers
        The most workers before the sum overflows; None if it never does.
    """

    name: str
    wire_bits: Callable[[int], tuple[tuple[str, float], ...]]
    sums: bool = True
    decodes: float = 1.0
    most_workers: int | None = None


@dataclass(frozen=True, slots=True)
class GradientCodec:
    """A representation of gradients on the wire.

    Attributes
    ----------
    transports
        The choices of the planner; they differ in width, as sums are wider than codes.
    encode_passes, decode_passes
        Passes over the float32 gradient in device memory, which is what coding is assumed to be bound by. What is
        measured on a device should replace it.
    noise
        Variance of the decoded gradient's noise ÷ the exact gradient's: 1 leaves the number of steps as it is.
    """

    name: str
    transports: tuple[Transport, ...]
    encode_passes: float = 0.0
    decode_passes: float = 0.0
    noise: float = 1.0


def sum_bits(workers: int) -> int:
    """Bits of a sum of so many ternary codes: it has 2 N + 1 levels."""
    return (2 * workers).bit_length()


def _floats(bits: int) -> tuple[Transport, ...]:
    """Floating-point numbers of this width, which any library sums."""
    return (
        Transport("all-reduce", lambda workers: (("all-reduce", bits),)),
        Transport("servers", lambda workers: (("push", bits), ("pull", bits))),
    )


# all-gather: everybody gets everybody's codes. sums: scalers agreed on by a message without bytes, codes to the device
# that sums their part, sums back to all; it decodes what it sums and what comes back. int8: codes summed as 8-bit
# integers, exactly and in any order. servers: the paper's own transport.
_TERNARY = (
    Transport("all-gather", lambda workers: (("all-gather", workers * _CODE_BITS),), sums=False),
    Transport(
        "sums",
        lambda workers: (("all-reduce", 0), ("all-to-all", _CODE_BITS), ("all-gather", sum_bits(workers))),
        decodes=2.0,
    ),
    Transport("int8", lambda workers: (("all-reduce", 0), ("all-reduce", 8)), most_workers=_INT8_LEVELS),
    Transport("servers", lambda workers: (("push", _CODE_BITS), ("pull", sum_bits(workers)))),
)

CODECS: Mapping[str, GradientCodec] = MappingProxyType(
    {
        codec.name: codec
        for codec in (
            GradientCodec("none", _floats(FLOAT_BITS)),
            # Encoding reads 4 bytes and writes 2, decoding reads 2 and writes 4.
            GradientCodec("fp16", _floats(16), encode_passes=1.5, decode_passes=1.5),
            # Encoding passes for the deviation, the largest element and the codes. Noise: 1 + 1.007, what codes drawn
            # from a Gaussian gradient clipped at 2.5 standard deviations add (Wen et al. 2017, eq. 1-3 and 21).
            GradientCodec("ternary", _TERNARY, encode_passes=3.0, decode_passes=2.0, noise=2.007),
        )
    }
)
"""Name, as ``--codecs`` takes it → codec."""
