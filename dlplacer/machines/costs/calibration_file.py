"""Calibration files, format ``dlplacer.calibration/1``."""

from pathlib import Path
from typing import Any

from dlplacer.core.record import BytesPerSecond, Name, Seconds
from dlplacer.files.fields import FileModel, Table, built, load_model, plain
from dlplacer.files.text import write_json
from dlplacer.machines.costs.calibration import Calibration, Entry

KIND, VERSION = "calibration", 1


class CopyModel(FileModel):
    latency_s: Seconds
    bytes_per_s: BytesPerSecond


class CalibrationModel(FileModel):
    format: str
    device_type: Name
    versions: dict[str, str]
    overhead_s: Seconds
    copy_line: CopyModel | None = None
    dispatch_s: Seconds | None = None
    ops: dict[str, Entry]
    meta: Table


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(path, CalibrationModel, KIND, VERSION)
    return built(str(path), _calibration, content)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file atomically."""
    value: dict[str, Any] = {
        "format": f"dlplacer.{KIND}/{VERSION}",
        "device_type": calibration.device_type,
        "versions": dict(calibration.versions),
        "overhead_s": calibration.overhead_s,
    }
    if calibration.copy_latency_s is not None and calibration.copy_bytes_per_s is not None:
        value["copy_line"] = {"latency_s": calibration.copy_latency_s, "bytes_per_s": calibration.copy_bytes_per_s}
    if calibration.dispatch_s is not None:
        value["dispatch_s"] = calibration.dispatch_s
    value["ops"] = {name: plain(entry, all_fields=True) for name, entry in sorted(calibration.entries.items())}
    write_json(path, value)


def _calibration(content: CalibrationModel) -> Calibration:
    line = content.copy_line
    return Calibration(
        content.device_type,
        content.versions,
        content.overhead_s,
        content.ops,
        None if line is None else line.latency_s,
        None if line is None else line.bytes_per_s,
        content.dispatch_s,
    )
