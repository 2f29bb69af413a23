"""Calibrations of this machine's devices, from a profile of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.machines.costs.calibration import Calibration, calibration_of, merged
from dlplacer.machines.costs.calibration_file import read_calibration, write_calibration
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import kind_of
from dlplacer.runtime.profile.issue_time import issue_time_s
from dlplacer.runtime.profile.link_times import measured_topology


def calibrate(
    path: Path, graph: OpGraph, times_s: Mapping[str, Mapping[str, float]], devices: Sequence[RuntimeDevice]
) -> Calibration:
    """Put a profile's times into a calibration file, which is made if it is not there; returns its content.

    Of the timed devices the issue cost is measured too, and copies between the first two. Raises InputError
    if they are of several types, or the file was measured on other hardware or versions.
    """
    types = {device.type for device in devices}
    if len(types) != 1:
        raise InputError(
            f"a calibration file is of one device type; {', '.join(sorted(types))} were given: use one each"
        )
    kind, here = devices[0].type, devices[0].torch_device
    versions = {"torch": str(torch.__version__), **kind_of(here).versions(here.index or 0)}
    found = calibration_of(graph, times_s[kind], kind, versions)
    found = replace(found, dispatch_s=issue_time_s(devices) or None)
    if len(devices) > 1:
        (link,) = measured_topology(devices[:2]).links
        found = replace(found, copy_latency_s=link.latency_s, copy_bytes_per_s=link.bytes_per_s)
    if path.exists():
        found = merged(read_calibration(path), found)
    write_calibration(path, found)
    return found
