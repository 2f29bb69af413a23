"""The kinds of devices that dlplacer runs on: to add one, write a module like `cuda` and add a row here."""

from collections.abc import Iterable

import torch

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CPU
from dlplacer.runtime.devices.cuda import CUDA
from dlplacer.runtime.devices.device_kind import DeviceKind

# Accelerators come first: who has one does not want to run on cores by default.
KINDS: dict[str, DeviceKind] = {kind.torch_type: kind for kind in (CUDA, CPU)}
"""Torch's type of a device → its kind; where devices are not named, the first of which there are any is used."""


def kind_of(device: torch.device) -> DeviceKind:
    """The kind of a device of torch."""
    return KINDS[device.type]


def in_host_memory(devices: Iterable[RuntimeDevice]) -> bool:
    """Whether tensors of all these devices live in the host's memory."""
    return all(kind_of(device.torch_device).in_host_memory for device in devices)


def default_names(most_cores: int) -> tuple[str, ...]:
    """Names of all devices of the first kind of which this machine has any, but no more than so many cores."""
    kind = next(kind for kind in KINDS.values() if kind.count())
    count = min(kind.count(), most_cores) if kind.in_host_memory else kind.count()
    return tuple(f"{kind.torch_type}:{index}" for index in range(count))
