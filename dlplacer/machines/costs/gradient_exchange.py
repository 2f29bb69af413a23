"""Costs of averaging gradients over workers: a codec of the table on one of its transports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dlplacer.core.errors import InputError
from dlplacer.core.record import Record, Seconds
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.gradient_codecs import CODECS, FLOAT_BITS, GradientCodec, Transport


@dataclass(frozen=True, slots=True)
class CodecSeconds(Record):
    """Measured coding times, per byte of the float32 gradient.

    Attributes
    ----------
    decode_s_per_byte
        Seconds per byte for decoding the codes of one worker.
    """

    encode_s_per_byte: Seconds
    decode_s_per_byte: Seconds


CollectiveCosts = Mapping[str, AlphaBeta]
"""Collective → its line over a given set of workers."""


@dataclass(frozen=True)
class GradientExchange:
    """A codec with its transport.

    Attributes
    ----------
    pass_s_per_byte
        Seconds that a device takes to pass over a byte of float32 gradient; 0 makes coding free.
    measured
        Measured coding times, in place of passes over memory.
    """

    codec: GradientCodec
    transport: Transport
    pass_s_per_byte: float = 0.0
    measured: CodecSeconds | None = None

    @property
    def name(self) -> str:
        """Codec and transport, as in ``ternary/all-gather``."""
        return f"{self.codec.name}/{self.transport.name}"

    @property
    def is_served(self) -> bool:
        """True if the exchange goes through parameter servers, which are devices besides the workers."""
        return any(collective == "push" for collective, _ in self.transport.wire_bits(2))

    def fits(self, workers: int) -> bool:
        """True if the exchange can average over so many workers."""
        most = self.transport.most_workers
        return workers >= 1 and (most is None or workers <= most)

    def steps(self, workers: int) -> tuple[tuple[str, float], ...]:
        """(Collective, its full vector as a share of the float32 gradient), one after another; none for one worker.

        Raises
        ------
        InputError
            If the exchange cannot average over so many workers.
        """
        if not self.fits(workers):
            most = self.transport.most_workers
            limit = "any number" if most is None else f"1 to {most}"
            raise InputError(f"exchange {self.name!r} of {workers} workers; it can average {limit}: choose another")
        found = self.transport.wire_bits(workers) if workers > 1 else ()
        return tuple((collective, bits / FLOAT_BITS) for collective, bits in found)

    def ratio(self, workers: int) -> float:
        """Bytes that a float32 ring all-reduce sends per device ÷ those that this sends; 1 for a single worker."""
        weights = {"all-reduce": 2.0, "push": workers / max(1, workers - 1), "pull": 0.0}
        sent = sum(weights.get(collective, 1.0) * share for collective, share in self.steps(workers))
        return 2.0 / sent if sent else 1.0

    def codec_s_per_byte(self, workers: int) -> float:
        """Seconds of encoding and decoding on every device, per byte of float32 gradient; 0 for a single worker."""
        if workers == 1:
            return 0.0
        decodes = self.transport.decodes if self.transport.sums else workers
        if self.measured is not None:
            return self.measured.encode_s_per_byte + decodes * self.measured.decode_s_per_byte
        return self.pass_s_per_byte * (self.codec.encode_passes + decodes * self.codec.decode_passes)

    def line(self, costs: CollectiveCosts, workers: int) -> AlphaBeta:
        """Seconds of the whole exchange over the bytes of the float32 gradient."""
        steps = self.steps(workers)
        return AlphaBeta(
            sum(costs[collective].latency_s for collective, _ in steps),
            sum(share * costs[collective].s_per_byte for collective, share in steps) + self.codec_s_per_byte(workers),
        )


def exchanges(
    memory_bytes_per_s: float | None = None,
    codecs: Iterable[str] = tuple(CODECS),
    measured: Mapping[str, CodecSeconds] = MappingProxyType({}),
) -> tuple[GradientExchange, ...]:
    """Every transport of these codecs.

    Parameters
    ----------
    memory_bytes_per_s
        Rate of the device's memory, which bounds coding; None: coding costs nothing.
    measured
        Codec → what coding takes, in place of that bound.

    Raises
    ------
    InputError
        If the rate is not positive, or there is no such codec.
    """
    if memory_bytes_per_s is not None and not memory_bytes_per_s > 0:
        raise InputError(f"memory_bytes_per_s is {memory_bytes_per_s}; it must be positive, or None")
    chosen = tuple(codecs)
    for name in (*chosen, *measured):
        if name not in CODECS:
            raise InputError(f"there is no codec {name!r}; use some of {', '.join(CODECS)}")
    pass_s = 0.0 if memory_bytes_per_s is None else 1 / memory_bytes_per_s
    return tuple(
        GradientExchange(codec, transport, pass_s, measured.get(codec.name))
        for codec in CODECS.values()
        if codec.name in chosen
        for transport in codec.transports
    )
