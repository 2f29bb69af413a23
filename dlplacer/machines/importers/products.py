"""Devices by product or type with figures of the device table; rates and latencies of links by kind, with sources."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.device_table import (
    CORE,
    DEVICE_TABLE,
    MEMORY,
    DeviceType,
    Figure,
    is_core,
    known_type,
    unknown_type,
)
from dlplacer.machines.costs.roofline import assumed_overheads, rates_of

K = TypeVar("K")

SWITCH = "nvswitch"
NVLINK_LATENCY_S = Figure(2e-6, "1.8 to 2.3 us from GPU to GPU (issue 230 of NVIDIA/cuda-samples)")
PCIE_HOP_LATENCY_S = Figure(2.5e-6, "two hops are 4 to 6 us between GPUs on one switch (p2pmark)")
SOCKET_BYTES_PER_S = Figure(10e9, "NCCL 2.30, src/graph/topo.h: SKL_QPI_BW")
SOCKET_LATENCY_S = Figure(5e-6, "GPUs of two sockets are 11 to 20 us apart (issue 230 of NVIDIA/cuda-samples)")

TYPE_OF_SM = {60: "P100", 70: "V100", 80: "A100", 90: "H100", 100: "B200"}
"""Compute capability × 10 → its usual device type; other capabilities are named ``sm86``."""
TYPE_OF_GFX = {"906": "MI50", "908": "MI100", "90a": "MI250", "942": "MI300X", "950": "MI355X"}
"""AMD's architecture → its usual device type; others are named ``gfx1100``."""

_UNKNOWN = DeviceType({}, 0.0, None, 18, 0.83 * 25e9, 4, "0.83 × 25 GB/s, as NVLink 2.0 to 4.0")
_BRIDGED = replace(_UNKNOWN, links=4, link_bytes_per_s=12e9, source="NCCL 2.30, src/graph/topo.h: SM86_NVLINK_BW")
_CODES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_MOST_LANES = 32
_SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def link_figures(device_type: str) -> DeviceType:
    """The row of the device table whose links a type has; usual ones for a type that the table does not have."""
    return DEVICE_TABLE.get(device_type, _BRIDGED if device_type == "sm86" else _UNKNOWN)


def nvlinks(
    devices: Mapping[K, Device], direct: Mapping[tuple[K, K], int], switched: Mapping[K, int]
) -> tuple[list[Link], list[Router]]:
    """NVLinks or xGMI links between GPUs, each pair at the rate of the slower one, and of GPUs into a switch.

    Parameters
    ----------
    direct, switched
        Pair of GPUs → how many links join them; GPU → how many lead into the switch.
    """
    latency_s = NVLINK_LATENCY_S.value
    links = [gpu_link(devices[one], devices[other], count, latency_s) for (one, other), count in direct.items()]
    links += [gpu_link(devices[gpu], SWITCH, count, latency_s / 2) for gpu, count in switched.items()]
    return links, [Router(SWITCH)] if switched else []


def gpu_link(device: Device, peer: Device | str, count: int, latency_s: float) -> Link:
    """NVLinks or xGMI links from a GPU to another, at the rate of the slower one, or to a router."""
    ends = [device] if isinstance(peer, str) else [device, peer]
    rate = min(link_figures(end.type).link_bytes_per_s or _UNKNOWN.link_bytes_per_s for end in ends)
    return Link(device.id, peer if isinstance(peer, str) else peer.id, rate, latency_s, count=count)


def assumed_links(devices: Iterable[Device]) -> str:
    """A text on the rate of one NVLink or xGMI link of these GPUs, by type.

    Raises
    ------
    InputError
        If one of them is of a type that has no such links.
    """
    rows = {device.type: link_figures(device.type) for device in devices}
    for kind, row in rows.items():
        if not row.links:
            raise InputError(f"the file joins GPUs by NVLinks, which a {kind} does not have; give their right type")
    return "; ".join(
        f"{row.link_bytes_per_s / 1e9:.4g} GB/s of {kind}" + (f" ({row.source})" if kind not in DEVICE_TABLE else "")
        for kind, row in rows.items()
    )


def pcie_bytes_per_s(transfers_per_s_e9: float, width: int) -> float:
    """Effective rate of a PCIe link: width × code ÷ 80 GB/s, NCCL's table in units of 100 Mbit/s per lane.

    Parameters
    ----------
    transfers_per_s_e9
        GT/s as PCIe counts it: 8 for generation 3, 16 for 4, 32 for 5; the nearest known value is taken.
    width
        Lanes. PCIe has at most 32: of what they do not know virtual machines say 63 or 255, which is taken as 16.
    """
    nearest = min(_CODES, key=lambda speed: abs(speed - transfers_per_s_e9))
    width = width if width <= _MOST_LANES else 16
    return width * _CODES[nearest] / 80 * 1e9


def pcie_slot_bytes_per_s(generation: int, width: int = 16) -> float:
    """Effective rate of a slot of a PCIe generation."""
    return pcie_bytes_per_s(_SPEEDS[min(max(generation, 1), 6)], width)


HWLOC = "hwloc's topology (lstopo), which tells no rates; give what nvidia-smi topo -m prints, or NCCL's file"


UNTYPED = Device.type
"""The type of a device that was given none."""

_ASSIGNMENT = re.compile(r"([^=]+)=([^=,]+)(?:,|$)")


def type_of_name(name: str) -> str:
    """The device type that a product name means; the name itself if the table does not have it."""
    return known_type(name) or name.strip()


def device_of_type(device_id: str, name: str, memory_bytes: int | None = None, meta: Mapping[str, Any] = {}) -> Device:
    """A device of a type or product, ``V100`` or ``A100-SXM4-40GB``: memory and rates by the device table.

    Parameters
    ----------
    memory_bytes
        As the device itself says; else as the name says (``32GB``), else as the table says; unlimited for a type
        that the table does not have.
    """
    kind = type_of_name(name)
    entry = DEVICE_TABLE.get(kind)
    if entry is None:
        return Device(device_id, kind, memory_bytes, meta=meta)
    told = MEMORY.search(name.lower().replace("-", " "))
    if memory_bytes is None:
        memory_bytes = entry.memory_bytes if told is None else int(told[1]) * 2**30
    return Device(device_id, kind, memory_bytes, entry.flops_per_s, entry.memory_bytes_per_s, meta)


class GivenTypes:
    """The types that a user gives to the devices of a machine: one for all, or some for each.

    Parameters
    ----------
    text
        A type or product name, or assignments of such to numbers, ranges of them and names of devices:
        ``0-2=RTX3090,3=RTX3060``. None gives no types.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._for_all: str | None = None
        self._given: dict[str, str] = {}
        rest = text or ""
        if rest and "=" not in rest:
            names = [_required(name) for name in rest.split(",")]
            if len(names) > 1:
                each = ",".join(f"{number}={name}" for number, name in enumerate(names))
                raise self._wrong(f"say which devices have which type, as {each}")
            self._for_all, rest = names[0], ""
        while rest:
            found = _ASSIGNMENT.match(rest)
            if found is None:
                raise self._wrong("write DEVICES=TYPE, several with commas, as 0-2=RTX3090,3=RTX3060")
            kind = _required(found[2])
            for key in (key for part in found[1].split(",") for key in self._keys(part.strip())):
                if key in self._given:
                    raise self._wrong(f"device {key} is given two types; name each device once")
                self._given[key] = kind
            rest = rest[found.end() :]

    def _keys(self, part: str) -> Iterable[str]:
        found = re.fullmatch(r"(\d{1,4})-(\d{1,4})", part)
        if found is None:
            return [part.casefold()]
        if int(found[1]) > int(found[2]):
            raise self._wrong(f"the range {part} runs backwards; write the lower number first")
        return map(str, range(int(found[1]), int(found[2]) + 1))

    def _wrong(self, told: str) -> InputError:
        return InputError(f"device types {self._text!r}: {told}")

    def of(self, device_id: str, number: int | str) -> str | None:
        """The type given to a device by its number or its name; None if none is."""
        return self._for_all or self._given.get(str(number), self._given.get(device_id.casefold()))

    def require_used(self, numbers: Mapping[str, int | str]) -> None:
        """Return if each device without a type of its own, name → number, is given one, and no other device is."""
        if not self._given:
            return
        known = {*map(str.casefold, numbers), *map(str, numbers.values())}
        untyped = [name for name, number in numbers.items() if self.of(name, number) is None]
        stray = [key for key in self._given if key not in known]
        if untyped or stray:
            told = f"{untyped[0]} gets no type" if untyped else f"there is no device {stray[0]} that needs one"
            raise self._wrong(f"{told}; the devices without a type are {', '.join([*numbers][:16]) or 'none'}")


def _required(name: str) -> str:
    """The name, of whose memory figure the device takes note, if it means a type of GPU."""
    if known_type(name) in (None, CORE):
        raise InputError(
            f"{unknown_type(name)} Or leave the type out, and write memory_bytes, flops_per_s and memory_bytes_per_s "
            "into the topology file"
        )
    return name.strip()


def with_types(topology: Topology, types: GivenTypes) -> Topology:
    """The topology with the given types, and the figures that follow, for its devices without one."""
    numbers = {device.id: place for place, device in enumerate(topology.devices) if device.type == UNTYPED}
    types.require_used(numbers)

    def typed(device: Device) -> Device:
        kind = types.of(device.id, numbers[device.id]) if device.id in numbers else None
        if kind is None:
            return device
        made = device_of_type(device.id, kind, device.memory_bytes, device.meta)
        return replace(
            device,
            type=made.type,
            memory_bytes=made.memory_bytes,
            flops_per_s=device.flops_per_s or made.flops_per_s,
            memory_bytes_per_s=device.memory_bytes_per_s or made.memory_bytes_per_s,
        )

    return replace(topology, devices=tuple(map(typed, topology.devices)))


def import_notes(topology: Topology, device_type: str | None) -> tuple[str, ...]:
    """Lines for whoever imports a machine: its assumptions if no type was given, and `unlimited_gpus`."""
    assumed = topology.meta.get("assumed", {}) if device_type is None else {}
    told = "; ".join(f"{key}: {text}" for key, text in assumed.items() if key != "socket")
    unlimited = unlimited_gpus(topology, imported=True)
    notes = [f"no type was given, so this is assumed: {told}; give the right type with --type"] if told else []
    return (*notes, *([] if unlimited is None else [unlimited]))


def notes_on(topology: Topology) -> tuple[str, ...]:
    """Lines for whoever plans on a machine: GPUs of unlimited memory, and types whose overhead is assumed."""
    unlimited = unlimited_gpus(topology)
    return (*([] if unlimited is None else [unlimited]), *assumed_overheads(topology))


def unlimited_gpus(topology: Topology, imported: bool = False) -> str | None:
    """A warning about GPUs whose memory a topology leaves unlimited; None if there are none.

    A device without rates counts only if it was imported and is thus real; it may belong to an example.
    """
    found = [
        device
        for device in topology.devices
        if device.memory_bytes is None and not is_core(device) and (imported or rates_of(device) is not None)
    ]
    if not found:
        return None
    names = ", ".join(device.id for device in found[:4]) + (", …" if len(found) > 4 else "")
    entry = DEVICE_TABLE.get(found[0].type)
    size = ""
    if entry is not None and entry.memory_bytes is not None:
        size = f" ({found[0].type}: {format_bytes(entry.memory_bytes)})"
    return (
        f"topology {topology.name!r} leaves the memory of {names} (type {found[0].type}) unlimited: a plan may need "
        f"more than there is; give memory_bytes{size}, or import the machine with --type"
    )
