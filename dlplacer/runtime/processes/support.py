"""Where devices can be processes."""

import os
import platform
import sys
from collections.abc import Sequence

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice

_ORDERED = ("x86_64", "AMD64", "i686")
"""Processors on which what one core writes is seen by the others in that order (total store order)."""


def why_no_processes(devices: Sequence[RuntimeDevice]) -> str | None:
    """Why these devices cannot be processes; None if they can."""
    if len(devices) < 2:
        return "there is one device"
    other = next((device.name for device in devices if not isinstance(device, CpuDevice)), None)
    if other is not None:
        return f"device {other!r} is no CPU core"
    if sys.platform != "linux" or not hasattr(os, "fork"):
        return f"they are forked, which {sys.platform} cannot"
    if platform.machine() not in _ORDERED:
        return f"shared words need the memory order of x86 processors; this one is {platform.machine()}"
    return None
