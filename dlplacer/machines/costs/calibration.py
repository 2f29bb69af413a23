"""Measured op times of one device type, keyed by the op's identity so that other graphs can use them.

The identity is the op's kind, the shapes and dtypes that it reads and writes, and its other arguments, but not its
place in a model. An op that was never measured takes its roofline time, and at least the overhead of a call.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op, TensorSpec
from dlplacer.core.record import BytesPerSecond, Name, Number, Record, Seconds, record
from dlplacer.core.topology import Topology
from dlplacer.files.fields import FileModel, Table
from dlplacer.files.text import write_json

_SMALL_BYTES = 2**16
"""An op that moves at most these bytes and computes no FLOP takes only the overhead of its call."""


@record(frozen=True, slots=True)
class Entry(Record):
    """Median seconds of the measured ops with one signature, and the number of these ops."""

    time_s: Seconds
    count: Annotated[int, Number(at_least=1, whole=True)] = 1


@record(frozen=True, slots=True)
class CopyLine(Record):
    """Latency and rate of a copy to another device."""

    latency_s: Seconds
    bytes_per_s: BytesPerSecond


class Calibration(FileModel):
    """The content of a file with the measured times of one device type.

    `overhead_s`: Seconds of an op that moves almost no data. `ops`: Signature of an op (`signature`) → its time.
    """

    FORMAT = "dlplacer.calibration/1"
    format: str = FORMAT
    device_type: Name
    versions: dict[str, str]
    overhead_s: Seconds
    copy_line: CopyLine | None = None
    dispatch_s: Seconds | None = None
    ops: dict[str, Entry]
    meta: Table


def signature(graph: OpGraph, op: Op) -> str:
    """The identity of an op in any graph: its kind, the tensors that it reads and writes, and its other arguments."""
    reads = [_spec(graph, edge.source, edge.output) for edge in graph.edges_into[op.id]]
    writes = [_text(spec) for spec in op.outputs]
    arguments = json.dumps(
        [_without_names(op.attrs.get("args", ())), _without_names(op.attrs.get("kwargs", {}))],
        sort_keys=True,
        default=str,
    )
    return f"{op.attrs.get('target', op.kind)} ({', '.join(reads)}) -> ({', '.join(writes)}) {arguments}"


def calibration_of(
    graph: OpGraph, times_s: Mapping[str, float], device_type: str, versions: Mapping[str, str]
) -> Calibration:
    """The calibration from one profile of a graph; ops of one signature take the median of their times."""
    found: dict[str, list[float]] = defaultdict(list)
    for op in graph.ops:
        if op.attrs:
            found[signature(graph, op)].append(times_s[op.id])
    small = [times_s[op.id] for op in graph.ops if op.attrs and op.bytes_accessed <= _SMALL_BYTES and not op.flops]
    entries = {name: Entry(median(times), len(times)) for name, times in found.items()}
    # An op of a few bytes costs only its call; without such ops the shortest op is an upper bound.
    overhead_s = median(small) if small else min((entry.time_s for entry in entries.values()), default=0.0)
    return Calibration(device_type=device_type, versions=dict(versions), overhead_s=overhead_s, ops=entries, meta={})


def merged(old: Calibration, new: Calibration) -> Calibration:
    """The union of two calibrations; an op in both takes its new time.

    Raises InputError if the device types differ, or the versions of hardware and software.
    """
    if old.device_type != new.device_type:
        raise InputError(
            f"a calibration of {old.device_type!r} cannot take times of {new.device_type!r}; use another file"
        )
    if old.versions != new.versions:
        raise InputError(
            f"the calibration of {old.device_type!r} was measured with {old.versions}; here it is {new.versions}, "
            "so its times do not hold: use another file"
        )
    kept = {name: value for name, value in new if value is not None}
    return old.model_copy(update={**kept, "ops": {**old.ops, **new.ops}})


def with_calibrated_times(graph: OpGraph, calibration: Calibration) -> tuple[OpGraph, int]:
    """The graph with times from the calibration, and the number of ops whose time the calibration has.

    Other ops keep their time for this type, raised to the measured overhead of a call; zero-time ops stay at 0.
    """
    signatures = {op.id: signature(graph, op) for op in graph.ops if op.attrs}
    known = {op: calibration.ops[name].time_s for op, name in signatures.items() if name in calibration.ops}
    ops = (_timed(op, calibration.device_type, known.get(op.id), calibration.overhead_s) for op in graph.ops)
    return replace(graph, ops=tuple(ops)), len(known)


def with_calibrated_links(topology: Topology, calibration: Calibration) -> Topology:
    """The topology with the measured latency and rate on links between two devices of the calibration's type.

    Devices of this type that have a `dispatch_s` take the measured value. Devices without one keep none, because a
    calibration does not record which devices share a process.
    """
    kind, copy_line = calibration.device_type, calibration.copy_line
    devices = tuple(
        replace(device, dispatch_s=calibration.dispatch_s or device.dispatch_s)
        if device.type == kind and device.dispatch_s is not None
        else device
        for device in topology.devices
    )
    ours = {device.id for device in devices if device.type == kind and copy_line is not None}
    links = tuple(
        replace(link, latency_s=copy_line.latency_s, bytes_per_s=copy_line.bytes_per_s, count=1)
        if copy_line is not None and {link.source, link.target} <= ours
        else link
        for link in topology.links
    )
    return replace(topology, devices=devices, links=links)


def calibrated(
    graph: OpGraph, topology: Topology, paths: Iterable[str | PathLike[str]]
) -> tuple[OpGraph, Topology, list[str]]:
    """Graph and machine with the measurements in calibration files, and a note for each file on the ops it covers."""
    ops, notes = sum(bool(op.attrs) for op in graph.ops), []
    for path in paths:
        found = read_calibration(Path(path))
        graph, known = with_calibrated_times(graph, found)
        topology = with_calibrated_links(topology, found)
        notes.append(f"{path}: measured times for {known} of {ops} ops on {found.device_type}; the rest by roofline")
    return graph, topology, notes


def _timed(op: Op, kind: str, known_s: float | None, overhead_s: float) -> Op:
    before_s = op.time_on(kind)
    if known_s is None:
        if not before_s or before_s >= overhead_s:
            return op
        known_s = overhead_s
    given = dict(op.time_s) if isinstance(op.time_s, Mapping) else {}
    return replace(op, time_s={**given, kind: known_s})


def _spec(graph: OpGraph, source: str, output: int) -> str:
    outputs = graph.op(source).outputs
    return _text(outputs[output]) if output < len(outputs) else "tensor"


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{','.join(map(str, spec.shape))}]"


def _without_names(value: Any) -> Any:
    """Arguments with every reference to a tensor replaced by ``tensor``."""
    if isinstance(value, Mapping):
        return "tensor" if "tensor" in value else {key: _without_names(each) for key, each in value.items()}
    return [_without_names(each) for each in value] if isinstance(value, (list, tuple)) else value


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises FileFormatError with every mistake and its path.
    """
    return Calibration.load(path)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration file atomically."""
    value = calibration.model_dump(exclude_none=True, exclude={"meta"})
    write_json(path, {**value, "ops": dict(sorted(value["ops"].items()))})
