"""Measured codecs, wires and convergence, in place of assumptions: files of ``dlplacer.measurements/1``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dlplacer.core.errors import InputError
from dlplacer.core.record import BytesPerSecond, Number, Seconds
from dlplacer.files.fields import FileModel, ListOf, Table, built, count_key_mistakes, load_model
from dlplacer.files.text import write_json
from dlplacer.machines.costs.collectives import ALGORITHMS
from dlplacer.machines.costs.gradient_codecs import CODECS
from dlplacer.machines.costs.gradient_exchange import CodecSeconds
from dlplacer.planning.hybrid.epochs import StatisticalEfficiency

COLLECTIVES = tuple(dict.fromkeys(algorithm.collective for algorithm in ALGORITHMS))


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A collective as it was timed.

    Attributes
    ----------
    devices
        The number of devices that took part.
    bytes
        Size of the whole vector on one device.
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
    """The network between machines: bytes per second of a machine's card, and seconds from device to device."""

    bytes_per_s: float
    latency_s: float


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


class CollectiveFields(FileModel):
    """A collective that was timed: devices, bytes of the whole vector, seconds."""

    collective: str
    devices: Annotated[int, Field(ge=2)]
    bytes: Annotated[int, Number("bytes", at_least=1, whole=True)]
    seconds: Annotated[float, Number("seconds", positive=True)]


class NetworkFields(FileModel):
    """The card of a machine."""

    bytes_per_s: BytesPerSecond
    latency_s: Seconds


class MeasurementsFile(FileModel):
    """The fields of a file of measurements; every one is optional."""

    format: str
    name: str = ""
    source: str = ""
    meta: Table
    codecs: Annotated[dict[str, CodecFields], Field(default_factory=dict)]
    codec_factor: Factors
    period_factor: Factors
    collectives: ListOf[CollectiveFields]
    network: NetworkFields | None = None

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


def write_measurements(
    path: str | Path,
    *,
    codecs: Mapping[str, Mapping[str, Any]] | None = None,
    codec_factor: Mapping[str, float] | None = None,
    period_factor: Mapping[int, float] | None = None,
    collectives: tuple[MeasuredCollective, ...] = (),
    network: MeasuredNetwork | None = None,
    source: str = "",
) -> None:
    """Write a file of measurements.

    Parameters
    ----------
    codecs
        Codec → an object with ``encode_s_per_byte``, ``decode_s_per_byte`` and ``world_size``, as
        `dlplacer.data_parallel.TernaryState.stats` returns it; other entries are left out.

    Raises
    ------
    InputError
        If a codec has not been measured yet.
    """
    content: dict[str, Any] = {"format": f"dlplacer.measurements/{VERSION}", "source": source}
    rows = {name: _codec_row(name, stats) for name, stats in (codecs or {}).items()}
    found: dict[str, Any] = {
        "codecs": rows,
        "codec_factor": dict(codec_factor or {}),
        "period_factor": {str(period): factor for period, factor in (period_factor or {}).items()},
        "collectives": [
            {"collective": each.collective, "devices": each.devices, "bytes": each.bytes, "seconds": each.seconds}
            for each in collectives
        ],
    }
    content |= {key: value for key, value in found.items() if value}
    if network is not None:
        content["network"] = {"bytes_per_s": network.bytes_per_s, "latency_s": network.latency_s}
    write_json(Path(path), content)


def _codec_row(name: str, stats: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: stats.get(key) for key in ("encode_s_per_byte", "decode_s_per_byte")}
    if None in row.values():
        raise InputError(f"codec {name!r} has not been measured; take its statistics after some steps, on a CPU")
    return {**row, "workers": max(1, int(stats.get("world_size", 1)))}


def _measurements(content: MeasurementsFile) -> Measurements:
    network = content.network
    return Measurements(
        {
            name: CodecSeconds(each.encode_s_per_byte, each.decode_s_per_byte / each.workers)
            for name, each in content.codecs.items()
        },
        content.codec_factor,
        {int(period): factor for period, factor in content.period_factor.items()},
        tuple(
            MeasuredCollective(each.collective, each.devices, each.bytes, each.seconds) for each in content.collectives
        ),
        None if network is None else MeasuredNetwork(network.bytes_per_s, network.latency_s),
    )
