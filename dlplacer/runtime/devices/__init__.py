"""Devices at run time: a CPU core with a pinned thread, or a CUDA device with its streams."""

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import open_devices

__all__ = ["RuntimeDevice", "open_devices"]
