"""Ways to average gradients over workers: what is encoded, what is sent by which collective, and what that costs.

A codec makes bytes smaller and takes time on the device; a transport is the collectives that carry the codes. The two
belong together: ternary codes can be gathered or summed, and each needs other widths.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.alpha_beta import AlphaBeta

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "push", "pull")
"""What a transport may be made of. Each is costed over the bytes of its full vector, as `collectives` defines them.

A push is what every worker sends to parameter servers that share it out among themselves, a pull what it gets back.
"""

CollectiveCosts = Mapping[str, AlphaBeta]
"""Name in `COLLECTIVES` → its line over a given set of workers."""

_FLOAT_BITS = 32
_CODE_BITS = 2
_INT8_LEVELS = 127


class Codec(Protocol):
    """How gradients are encoded and exchanged, as the planner sees it; `GradientExchange` is one."""

    @property
    def name(self) -> str:
        """Codec and transport, as in ``ternary/all-gather``."""

    def fits(self, workers: int) -> bool:
        """Whether so many workers can average this way."""

    def ratio(self, workers: int) -> float:
        """Bytes that a float32 ring all-reduce sends per device ÷ bytes of this one; below 1 where it sends more."""

    def codec_s_per_byte(self, workers: int) -> float:
        """Seconds of encoding and decoding on every device, per byte of float32 gradient."""

    def line(self, costs: CollectiveCosts, workers: int) -> AlphaBeta:
        """Seconds of the whole exchange over the bytes of the float32 gradient."""


@dataclass(frozen=True)
class GradientExchange:
    """A codec with its transport.

    Attributes
    ----------
    codec, transport
        Names.
    steps
        Number of workers → (collective, its full vector as a share of the float32 gradient), one after another.
    encode_s_per_byte
        Seconds per byte of float32 gradient, once on every device.
    decode_s_per_byte
        Seconds per byte of float32 gradient, for each contribution that a device decodes.
    decodes
        Number of workers → how many times over a device decodes the gradient.
    most_workers
        Above this many the codes overflow; None where they never do.
    """

    codec: str
    transport: str
    steps: Callable[[int], tuple[tuple[str, float], ...]]
    encode_s_per_byte: float = 0.0
    decode_s_per_byte: float = 0.0
    decodes: Callable[[int], float] = lambda workers: 1.0
    most_workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("encode_s_per_byte", "decode_s_per_byte"):
            value = getattr(self, name)
            if not 0 <= value <= sys.float_info.max:
                raise InputError(f"exchange {self.name!r}: {name} is {value}; it must be finite and at least 0")

    @property
    def name(self) -> str:
        """Codec and transport, as in ``ternary/all-gather``."""
        return f"{self.codec}/{self.transport}"

    def fits(self, workers: int) -> bool:
        """Whether so many workers can average this way."""
        return workers >= 1 and (self.most_workers is None or workers <= self.most_workers)

    def ratio(self, workers: int) -> float:
        """Bytes that a float32 ring all-reduce sends per device ÷ those that this sends; 1 for a single worker."""
        self._require(workers)
        if workers == 1:
            return 1.0
        weights = {"all-reduce": 2.0, "push": workers / (workers - 1), "pull": 0.0}
        return 2.0 / sum(weights.get(name, 1.0) * share for name, share in self.steps(workers))

    def codec_s_per_byte(self, workers: int) -> float:
        """Seconds of encoding and decoding on every device, per byte of float32 gradient; 0 for a single worker."""
        self._require(workers)
        if workers == 1:
            return 0.0
        return self.encode_s_per_byte + self.decodes(workers) * self.decode_s_per_byte

    def line(self, costs: CollectiveCosts, workers: int) -> AlphaBeta:
        """Seconds of the whole exchange over the bytes of the float32 gradient; nothing for a single worker."""
        self._require(workers)
        latency_s, s_per_byte = 0.0, self.codec_s_per_byte(workers)
        for name, share in self.steps(workers) if workers > 1 else ():
            latency_s += costs[name].latency_s
            s_per_byte += share * costs[name].s_per_byte
        return AlphaBeta(latency_s, s_per_byte)

    @property
    def is_served(self) -> bool:
        """Whether the exchange goes through parameter servers, which are devices beside the workers."""
        return any(name in ("push", "pull") for name, _ in self.steps(2))

    def _require(self, workers: int) -> None:
        if not self.fits(workers):
            most = "any number" if self.most_workers is None else f"1 to {self.most_workers}"
            raise InputError(f"exchange {self.name!r} of {workers} workers; it can average {most}: choose another")


def sum_bits(workers: int) -> int:
    """Bits of a sum of so many ternary codes: it has 2 N + 1 levels."""
    return (2 * workers).bit_length()


def ternary_gather_steps(workers: int) -> tuple[tuple[str, float], ...]:
    """Everybody gets everybody's 2-bit codes."""
    return (("all-gather", workers * _CODE_BITS / _FLOAT_BITS),)


def ternary_sum_steps(workers: int) -> tuple[tuple[str, float], ...]:
    """Scalers agreed on; codes to the device that sums their part; sums of ⌈log₂(2 N + 1)⌉ bits back to all."""
    return (
        ("all-reduce", 0.0),
        ("all-to-all", _CODE_BITS / _FLOAT_BITS),
        ("all-gather", sum_bits(workers) / _FLOAT_BITS),
    )


def ternary_server_steps(workers: int) -> tuple[tuple[str, float], ...]:
    """2-bit codes pushed to the servers, sums of ⌈log₂(2 N + 1)⌉ bits pulled back: the paper's own transport."""
    return ("push", _CODE_BITS / _FLOAT_BITS), ("pull", sum_bits(workers) / _FLOAT_BITS)


def ternary_int8_steps(_workers: int) -> tuple[tuple[str, float], ...]:
    """Scalers agreed on; codes summed as 8-bit integers, exactly and in any order."""
    return (("all-reduce", 0.0), ("all-reduce", 8 / _FLOAT_BITS))


def exchanges(memory_bytes_per_s: float | None = None) -> tuple[GradientExchange, ...]:
    """Plain float32, float16 and ternary gradients, among the workers and through parameter servers.

    Parameters
    ----------
    memory_bytes_per_s
        Rate of the device's memory: encoding float16 passes 1.5 times over the float32 gradient and decoding as often;
        encoding ternary passes three times (spread, largest value, codes), decoding twice per contribution. What is
        measured on a device should replace it. None: coding costs nothing.

    Raises
    ------
    InputError
        If the rate is not positive.
    """
    if memory_bytes_per_s is not None and not memory_bytes_per_s > 0:
        raise InputError(f"memory_bytes_per_s is {memory_bytes_per_s}; it must be positive, or None")
    pass_s = 0.0 if memory_bytes_per_s is None else 1 / memory_bytes_per_s
    encode_s, decode_s = 3 * pass_s, 2 * pass_s
    return (
        GradientExchange("none", "all-reduce", lambda workers: (("all-reduce", 1.0),)),
        GradientExchange("fp16", "all-reduce", lambda workers: (("all-reduce", 0.5),), 1.5 * pass_s, 1.5 * pass_s),
        GradientExchange("ternary", "all-gather", ternary_gather_steps, encode_s, decode_s, decodes=float),
        GradientExchange("ternary", "sums", ternary_sum_steps, encode_s, decode_s, decodes=lambda workers: 2.0),
        GradientExchange("ternary", "int8", ternary_int8_steps, encode_s, decode_s, most_workers=_INT8_LEVELS),
        GradientExchange("none", "servers", lambda workers: (("push", 1.0), ("pull", 1.0))),
        GradientExchange("fp16", "servers", lambda workers: (("push", 0.5), ("pull", 0.5)), 1.5 * pass_s, 1.5 * pass_s),
        GradientExchange("ternary", "servers", ternary_server_steps, encode_s, decode_s),
    )
