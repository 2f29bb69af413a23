"""What the lowering for streams needs to know of devices: their memory, and whether they have streams."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of

HOST_MEMORY = str(HOST_DEVICE)


@dataclass(frozen=True, slots=True)
class DeviceMemorySpace:
    """One device of a program.

    Attributes
    ----------
    memory
        Name of the memory in which its tensors live: ``cpu``, ``cuda:0``.
    has_streams
        Whether its thread enqueues work on streams and goes on; else an action is done when its call returns.
    copies
        Whether tensors are copied even to a device of the same memory.
    away
        Whether it belongs to another process. Tensors for it are handed over in `memory`: the host's, or, if the
        transport orders streams itself, ``""``.
    """

    memory: str = HOST_MEMORY
    has_streams: bool = False
    copies: bool = False
    away: bool = False

    def hands_over_to(self, target: "DeviceMemorySpace") -> bool:
        """Whether a tensor gets to another device without a copy."""
        if target.away and not target.memory:
            return True
        return self.memory == target.memory and not (self.copies and self.has_streams and target.has_streams)


MemorySpaces = Mapping[str, DeviceMemorySpace]
"""Device name in the program → its memory space."""


def memory_spaces(
    devices: Mapping[str, RuntimeDevice], names: Iterable[str], away_on_device: bool = False
) -> MemorySpaces:
    """The memory spaces of a program's devices; those that are not among `devices` belong to other processes.

    Parameters
    ----------
    away_on_device
        Whether tensors for other processes are handed over where they are, and not in the host's memory.
    """
    elsewhere = DeviceMemorySpace("" if away_on_device else HOST_MEMORY, away=True)
    spaces = dict.fromkeys(names, elsewhere)
    for name in spaces.keys() & devices.keys():
        streams, memory = streams_of(devices[name]), str(devices[name].torch_device)
        spaces[name] = DeviceMemorySpace(memory, streams is not None, streams is not None and streams.copies_here)
    return spaces
