"""What a device is at run time: a pinned thread with its allocator, or a CUDA device with its streams."""

from dlplacer.devices.base import Device
from dlplacer.devices.open import open_devices

__all__ = ["Device", "open_devices"]
