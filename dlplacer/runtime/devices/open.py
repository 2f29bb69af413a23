"""The table of device kinds that dlplacer runs on; parsing of device names; opening of devices.

To add a kind, write a module like `cuda` and add a row to `KINDS`.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch

from dlplacer.core.errors import InputError
from dlplacer.runtime.devices.base import DeviceKind, RuntimeDevice
from dlplacer.runtime.devices.cpu import CPU
from dlplacer.runtime.devices.cuda import CUDA

# Accelerators come first: they are the default on machines that have one.
KINDS: dict[str, DeviceKind] = {kind.torch_type: kind for kind in (CUDA, CPU)}
"""Torch's device type → its kind; the default is the first kind of which this machine has a device."""

_NAME = re.compile(r"(?P<kind>[a-z]+)(?::(?P<index>\d+))?(?:/(?P<part>\d+))?(?:\?copies=(?P<copies>free|forced))?")


def kind_of(device: torch.device) -> DeviceKind:
    """The kind of a torch device."""
    return KINDS[device.type]


def in_host_memory(devices: Iterable[RuntimeDevice]) -> bool:
    """True if tensors of all these devices live in the host's memory."""
    return all(kind_of(device.torch_device).in_host_memory for device in devices)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A parsed device name: ``cpu:1``, ``cuda:0``, ``cuda:0/1`` or ``cuda:0/1?copies=forced``."""

    kind: str
    index: int
    part: int | None = None
    copies: str = "free"

    @classmethod
    def parse(cls, text: str) -> "DeviceName":
        """Parse a device name; raises InputError, with the valid forms, if the name is invalid."""
        match = _NAME.fullmatch(text.strip())
        if match is None or match["kind"] not in KINDS:
            forms = " or ".join(f"{kind}:0, {kind}:1, …" for kind in sorted(KINDS))
            parts = ", or ".join(f"{name}:0/0, {name}:0/1" for name, kind in KINDS.items() if kind.divisible)
            raise InputError(f"device {text!r} is not understood; write {forms}, or {parts} for several on one GPU")
        kind, part, copies = match["kind"], match["part"], match["copies"]
        if not KINDS[kind].divisible and part:
            raise InputError(f"device {text!r}: a core is one device, and its tensors are handed over; write {kind}:0")
        if copies is not None and part is None:
            raise InputError(f"device {text!r}: write {kind}:0/0?copies=forced or ?copies=free for parts of one GPU")
        return cls(kind, int(match["index"] or 0), None if part is None else int(part), copies or "free")

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" + ("" if self.part is None else f"/{self.part}")


def open_devices(names: Sequence[str]) -> list[RuntimeDevice]:
    """Start the devices of these names: ``cpu:0``, ``cuda:1``, ``cuda:0/1``, …

    Raises InputError if a name is not understood or given twice, or this machine lacks the device.
    """
    wanted = [DeviceName.parse(name) for name in names]
    for place, name in enumerate(wanted):
        same = [other.part for other in wanted[:place] if (other.kind, other.index) == (name.kind, name.index)]
        if name.part in same or (same and None in (*same, name.part)):
            parts = f", or {name.kind}:{name.index}/0, … for several on one GPU" if KINDS[name.kind].divisible else ""
            raise InputError(
                f"device '{name}' is given twice, or whole and in part; every device of a plan needs one of its own"
                + parts
            )
    # Close them on any failure, Ctrl-C too: the threads of open devices would outlive the call.
    with ExitStack() as failing:
        opened = []
        for name in wanted:
            device = KINDS[name.kind].open(name.index, part=name.part, copies=name.copies)
            opened.append(failing.enter_context(closing(device)))
        failing.pop_all()
    return opened
