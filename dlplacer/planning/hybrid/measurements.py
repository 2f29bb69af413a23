"""Measured codecs, wires and convergence, in place of assumptions: files of ``dlplacer.measurements/1``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.core.record import BytesPerSecond, Number, Record, Seconds, record
from dlplacer.files.fields import FileModel, ListOf, Table, built, count_key_mistakes, load_model
from dlplacer.machines.costs.collectives import ALGORITHMS
from dlplacer.machines.costs.gradient_codecs import CODECS, CodecSeconds
from dlplacer.planning.hybrid.epochs import StatisticalEfficiency

COLLECTIVES = tuple(dict.fromkeys(algorithm.collective for algorithm in ALGORITHMS))


@record(frozen=True, slots=True)
class MeasuredCollective(Record):
    """A collective as it was timed.

    Attributes
    ----------
    devices
        The number of devices that took part.
    bytes
        Size of the whole vector on one device.
    """

    collective: str
    devices: Annotated[int, Number(at_least=2, whole=True)]
    bytes: Annotated[int, Number("bytes", at_least=1, whole=True)]
    seconds: Annotated[float, Number("seconds", positive=True)]

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise InputError(f"there is no collective {self.collective!r}; use one of {', '.join(COLLECTIVES)}")


@record(frozen=True, slots=True)
class MeasuredNetwork(Record):
    """The network between machines: bytes per second of a machine's card, and seconds from device to device."""

    bytes_per_s: BytesPerSecond
    latency_s: Seconds


@dataclass(frozen=True)
class Measurements:
    """The content of a file of measurements.

    Attributes
    ----------
    codecs
        Codec → its coding times.
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


VERSION = 1
Factors = Annotated[dict[str, Annotated[float, Field(gt=0, le=1e12)]], Field(default_factory=dict)]


class CodecFields(FileModel):
    """Seconds of coding per byte of the float32 gradient; decoding of the codes of so many workers."""

    encode_s_per_byte: Seconds
    decode_s_per_byte: Seconds
    workers: Annotated[int, Field(ge=1, lt=2**31)] = 1


class MeasurementsFile(FileModel):
    """The fields of a file of measurements; every one is optional."""

    format: str
    name: str = ""
    source: str = ""
    meta: Table
    codecs: Annotated[dict[str, CodecFields], Field(default_factory=dict)]
    codec_factor: Factors
    period_factor: Factors
    collectives: ListOf[MeasuredCollective]
    network: MeasuredNetwork | None = None

    def mistakes(self) -> Iterator[str]:
        """Names that are none."""
        for where in ("codecs", "codec_factor"):
            for name in getattr(self, where):
                if name not in CODECS:
                    yield f"{where}.{name}: there is no such codec; use some of {', '.join(CODECS)}"
        yield from count_key_mistakes("period_factor", self.period_factor, "steps")


def read_measurements(path: str | Path) -> Measurements:
    """The measurements in a file.

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(Path(path), MeasurementsFile, "measurements", VERSION)
    return built(str(path), _measurements, content)


def _measurements(content: MeasurementsFile) -> Measurements:
    return Measurements(
        {
            name: CodecSeconds(each.encode_s_per_byte, each.decode_s_per_byte / each.workers)
            for name, each in content.codecs.items()
        },
        content.codec_factor,
        {int(period): factor for period, factor in content.period_factor.items()},
        tuple(content.collectives),
        content.network,
    )
