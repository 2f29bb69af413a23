"""Device names → devices."""

import re
from collections.abc import Sequence

from dlplacer.devices.base import Device
from dlplacer.devices.cpu import CpuDevice
from dlplacer.devices.cuda import CudaDevice
from dlplacer.errors import InputError


def open_devices(names: Sequence[str]) -> list[Device]:
    """Start the devices of these names: ``cpu:0``, ``cuda:1``, …

    Raises
    ------
    InputError
        If a name is not understood or given twice, or the device is not here.
    """
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"device {repeated[0]!r} is given twice; every device of a plan needs one of its own")
    opened: list[Device] = []
    try:
        for name in names:
            opened.append(_open(name))
    except BaseException:
        for device in opened:
            device.close()
        raise
    return opened


def _open(name: str) -> Device:
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name.strip())
    if match is None:
        raise InputError(f"device {name!r} is not understood; write cpu:0, cpu:1, … or cuda:0, cuda:1, …")
    index = int(match[2] or 0)
    return CpuDevice(index) if match[1] == "cpu" else CudaDevice(index)
