"""The properties in which kinds of devices differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dlplacer.runtime.devices.base import RuntimeDevice


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device: CPU cores, CUDA devices.

    Attributes
    ----------
    torch_type
        As torch names it, and as names of devices begin: ``cpu``, ``cuda``.
    open
        ``open(index, part=None, copies="free")`` starts a device, or one of several logical devices on it; raises
        InputError if there is none.
    count
        How many devices of the kind this process may use.
    in_host_memory
        Whether tensors live in the host's memory: they are handed over instead of copied, the allocator is the C heap,
        and each device dispatches its own ops. Devices of other kinds are all fed by one process.
    divisible
        Whether several logical devices can share one, as ``cuda:0/0`` and ``cuda:0/1``.
    collectives
        The backend of torch.distributed for tensors on such devices.
    generator
        Index → the random generator that ops there draw from by default.
    versions
        Index → hardware and software versions, other than torch's, for which measured times are valid.
    """

    torch_type: str
    open: Callable[..., RuntimeDevice]
    count: Callable[[], int]
    in_host_memory: bool
    divisible: bool
    collectives: str
    generator: Callable[[int], torch.Generator]
    versions: Callable[[int], Mapping[str, str]]
