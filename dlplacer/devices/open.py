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
    wanted = [_parsed(name) for name in names]
    for kind, index in wanted:
        if wanted.count((kind, index)) > 1:
            raise InputError(f"device '{kind}:{index}' is given twice; every device of a plan needs one of its own")
    opened: list[Device] = []
    try:
        for kind, index in wanted:
            opened.append(CpuDevice(index) if kind == "cpu" else CudaDevice(index))
    except BaseException:
        for device in opened:
            device.close()
        raise
    return opened


def _parsed(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name.strip())
    if match is None:
        raise InputError(f"device {name!r} is not understood; write cpu:0, cpu:1, … or cuda:0, cuda:1, …")
    return match[1], int(match[2] or 0)
