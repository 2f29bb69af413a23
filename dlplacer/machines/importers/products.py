"""Devices by product or type, with figures from the device table; rates and latencies of links, with sources."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.device_table import (
    CORE,
    DEVICE_TABLE,
    MEMORY,
    DeviceType,
    Figure,
    is_core,
    known_type,
    overhead_of,
    unknown_type,
)
from dlplacer.machines.costs.roofline import rates_of

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


def link_figures(device_type: str) -> DeviceType:
    """The row of the device table with the links of a type; usual figures for a type that the table lacks."""
    return DEVICE_TABLE.get(device_type, _BRIDGED if device_type == "sm86" else _UNKNOWN)


def nvlinks(ends: Iterable[tuple[Device, Device | str, int]], latency_s: float = NVLINK_LATENCY_S.value) -> list[Link]:
    """The NVLinks or xGMI links for each (GPU, other GPU or router, number of links); the slower GPU decides the rate.

    Raises InputError if the type of a GPU has no such links.
    """
    found = []
    for device, peer, count in ends:
        rows = {end.type: link_figures(end.type) for end in (device, peer) if isinstance(end, Device)}
        if unlinked := [kind for kind, row in rows.items() if not row.links]:
            raise InputError(
                f"the file joins GPUs by NVLinks, which a {unlinked[0]} does not have; give their right type"
            )
        rate, name = min(row.link_bytes_per_s for row in rows.values()), peer if isinstance(peer, str) else peer.id
        found.append(Link(device.id, name, rate, latency_s / 2 if name == SWITCH else latency_s, count=count))
    return found


def pcie_bytes_per_s(transfers_per_s_e9: float, width: int) -> float:
    """Effective rate of a PCIe link in bytes per second: its width × NCCL's rate of a lane (6 Gbit/s at 8 GT/s).

    `transfers_per_s_e9`: Rate in GT/s: 8 for generation 3, 16 for 4, 32 for 5; the nearest known value counts. `width`:
    Number of lanes. PCIe has at most 32; virtual machines report 63 or 255 for an unknown width, which counts as 16.
    """
    nearest = min(_CODES, key=lambda speed: abs(speed - transfers_per_s_e9))
    return (width if width <= _MOST_LANES else 16) * _CODES[nearest] / 80 * 1e9


def pcie_slot_bytes_per_s(generation: int, width: int = 16) -> float:
    """Effective rate in bytes per second of a PCIe slot of generation 1 to 6."""
    return pcie_bytes_per_s([*_CODES][min(max(generation, 1), 6) - 1], width)


UNTYPED = Device.type
"""The type of a device without a given type."""


def type_of_name(name: str) -> str:
    """The device type of a product name; the name itself if the table lacks it."""
    return known_type(name) or name.strip()


def device_of_type(device_id: str, name: str, memory_bytes: int | None = None, meta: Mapping[str, Any] = {}) -> Device:
    """A device of a type or product, ``V100`` or ``A100-SXM4-40GB``, with memory and rates from the device table.

    `memory_bytes`: The reported memory; if None, the size in the name (``32GB``), else the table's. None means
    unlimited for a type that the table lacks.
    """
    kind = type_of_name(name)
    entry = DEVICE_TABLE.get(kind)
    if entry is None:
        return Device(device_id, kind, memory_bytes, meta=meta)
    told = MEMORY.search(name.lower().replace("-", " "))
    if memory_bytes is None:
        memory_bytes = entry.memory_bytes if told is None else int(told[1]) * 2**30
    return Device(device_id, kind, memory_bytes, entry.flops_per_s, entry.memory_bytes_per_s, meta)


def given_types(text: str | None, devices: Sequence[str]) -> dict[str, str | None]:
    """Device → its type or product in the user's text: one for all, one for each (``A40,T4``), or ``0-2=A40,3=T4``."""
    if not text:
        return dict.fromkeys(devices)
    names = _numbered(text) if "=" in text else [_required(name) for name in text.split(",")]
    if len(names) == 1 and "=" not in text:
        names *= len(devices)
    if len(names) != len(devices):
        raise InputError(
            f"device types {text!r} do not fit {', '.join(devices[:16]) or 'a file without devices'}; give one for "
            "all, one each in this order, or one for ranges of their numbers, as 0-2=RTX3090,3=RTX3060"
        )
    return dict(zip(devices, names, strict=True))


def _numbered(text: str) -> list[str]:
    """The types in ``0-2=A40,3=T4``, in order of the devices' numbers; empty if a number is missing or occurs twice."""
    found, numbers = list[tuple[int, str]](), list[int]()
    for part in text.split(","):
        span, _, name = part.rpartition("=")
        first, _, last = (span or name).strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit() or len(first + last) > 8:
            return []
        numbers += range(int(first), int(last or first) + 1)
        if span:
            found += [(number, _required(name)) for number in numbers]
            numbers = []
    in_order = sorted(found) if not numbers else []
    return [name for _, name in in_order] if [number for number, _ in in_order] == [*range(len(in_order))] else []


def _required(name: str) -> str:
    """The name, stripped, if the device table has it as a GPU; raises InputError otherwise."""
    if known_type(name) in (None, CORE):
        raise InputError(
            f"{unknown_type(name)} Or leave the type out, and write memory_bytes, flops_per_s and memory_bytes_per_s "
            "into the topology file"
        )
    return name.strip()


def with_types(topology: Topology, device_type: str | None) -> Topology:
    """The topology in which devices without a type get types from `device_type`, and missing memory and rates."""
    types = given_types(device_type, [device.id for device in topology.devices if device.type == UNTYPED])

    def typed(device: Device) -> Device:
        kind = types.get(device.id)
        if kind is None:
            return device
        made = device_of_type(device.id, kind, device.memory_bytes, device.meta)
        flops_per_s, rate = device.flops_per_s or made.flops_per_s, device.memory_bytes_per_s or made.memory_bytes_per_s
        return replace(made, flops_per_s=flops_per_s, memory_bytes_per_s=rate)

    return replace(topology, devices=tuple(map(typed, topology.devices)))


def import_notes(topology: Topology) -> tuple[str, ...]:
    """Notes on an imported machine: the assumed types if none were given, and `machine_notes`."""
    assumed = [f"{kind} is {text}" for kind, text in topology.meta.get("assumed", {}).items()]
    notes = [f"no type was given: {'; '.join(assumed)}; give the right type with --type"] if assumed else []
    return (*notes, *machine_notes(topology, imported=True))


def machine_notes(topology: Topology, imported: bool = False) -> tuple[str, ...]:
    """Notes on types that are not in the device table, and on GPUs with unlimited memory.

    A GPU without rates is reported only if it was imported, because otherwise it may belong to an example.
    """
    unknown = {each.type: each for each in topology.devices if each.type not in DEVICE_TABLE and rates_of(each)}
    notes = tuple(
        f"device type {kind!r} is not in the device table: its ops take at least "
        f"{format_seconds(overhead_of(device).value)}, the overhead of its kind; profile the model, or give dispatch_s"
        for kind, device in unknown.items()
        if device.dispatch_s is None
    )
    found = [
        device
        for device in topology.devices
        if device.memory_bytes is None and not is_core(device) and (imported or rates_of(device) is not None)
    ]
    if not found:
        return notes
    names = ", ".join(device.id for device in found[:4]) + (", …" if len(found) > 4 else "")
    return (
        *notes,
        f"topology {topology.name!r} leaves the memory of {names} (type {found[0].type}) unlimited: a plan may need "
        "more than there is; give memory_bytes, or import the machine with --type",
    )
