"""Where a self-test ran: versions, devices, driver, for a report that says what it is a report of."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

from dlplacer.core.version import __version__
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import KINDS, DeviceName

_DRIVER_LIMIT_S = 10.0
_QUERY = ("nvidia-smi", "--query-gpu=index,name,driver_version,memory.total,pci.bus_id", "--format=csv,noheader")
_LINKS = ("nvidia-smi", "topo", "-m")


def environment_of(devices: Sequence[RuntimeDevice]) -> dict[str, Any]:
    """Versions, devices, and what the driver's own tool says of the GPUs; None where there is no such tool."""
    return {
        "dlplacer": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(usable_cores()),
        "devices": [_described(device) for device in devices],
        "driver": _said(_QUERY),
        "gpu_links": _said(_LINKS),
    }


def _described(device: RuntimeDevice) -> dict[str, Any]:
    name = DeviceName.parse(device.name)
    return {"name": device.name, "type": device.type, **KINDS[name.kind].versions(name.index)}


def _said(command: Sequence[str]) -> list[str] | None:
    """The lines that a program prints; None without it, or if it fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()
