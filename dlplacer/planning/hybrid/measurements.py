"""What was measured of codecs, wires and convergence, in place of what the planner would assume."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.collectives import ALGORITHMS
from dlplacer.machines.costs.gradient_exchange import CodecSeconds
from dlplacer.planning.hybrid.epochs.epochs import StatisticalEfficiency

COLLECTIVES = tuple(dict.fromkeys(algorithm.collective for algorithm in ALGORITHMS))


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A collective as it was timed.

    Attributes
    ----------
    devices
        How many took part.
    bytes
        Of the whole vector on one device.
    """

    collective: str
    devices: int
    bytes: int
    seconds: float

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InputError(f"there is no collective {self.collective!r}; use one of {', '.join(COLLECTIVES)}")
        if self.devices < 2 or self.bytes < 1 or not 0 < self.seconds < float("inf"):
            raise InputError(
                f"{self.collective}: {self.devices} devices, {self.bytes} bytes and {self.seconds} s were measured; at "
                "least two devices, one byte and a time above 0 are needed"
            )


@dataclass(frozen=True, slots=True)
class MeasuredNetwork:
    """What joins the machines: bytes per second of a machine's card, and seconds from device to device."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Measurements:
    """What a file of measurements says.

    Attributes
    ----------
    codecs
        Codec → what coding takes.
    codec_factors, period_factors
        As in `StatisticalEfficiency`; they replace those of the epochs file.
    """

    codecs: Mapping[str, CodecSeconds] = field(default_factory=dict)
    codec_factors: Mapping[str, float] = field(default_factory=dict)
    period_factors: Mapping[int, float] = field(default_factory=dict)
    collectives: tuple[MeasuredCollective, ...] = ()
    network: MeasuredNetwork | None = None

    def applied_to(self, efficiency: StatisticalEfficiency) -> StatisticalEfficiency:
        """The epochs with the measured factors."""
        return replace(
            efficiency,
            codec_factors={**efficiency.codec_factors, **self.codec_factors},
            period_factors={**efficiency.period_factors, **self.period_factors},
        )


NOTHING_MEASURED = Measurements()
