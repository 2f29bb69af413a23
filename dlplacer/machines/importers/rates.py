"""Effective rates and latencies of links by kind, each with its source; descriptions of machines lack them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router
from dlplacer.machines.costs.device_table import DEVICE_TABLE, DeviceType, Figure

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
