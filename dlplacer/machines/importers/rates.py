"""Effective rates and latencies of links by kind, each with its source; what a description of a machine leaves out."""

from dataclasses import dataclass

from dlplacer.machines.costs.device_table import Figure

_NCCL = "NCCL 2.30, src/graph/topo.h"
_NVLINK_SHARE = 0.83
"""Of NVLink's rate, what point-to-point copies reach: 371 to 377 of 450 GB/s on H100 (issue 1264 of NVIDIA/nccl)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What links of a generation of GPUs carry.

    Attributes
    ----------
    nvlink_bytes_per_s
        One NVLink in one direction.
    nvlinks
        Links that a GPU has: more pairs than that can serve hang on a switch.
    pcie
        PCIe generation of its x16 slot.
    """

    nvlink_bytes_per_s: Figure
    nvlinks: int
    pcie: int


_BRIDGED = "pairs joined by an NVLink bridge, compute capability 8.6"
_NO_NVLINK = Figure(_NVLINK_SHARE * 25e9, "of no use: these boards have no NVLinks; as UNKNOWN where a file says so")

GENERATIONS = {
    "P100": Generation(Figure(18e9, f"{_NCCL}: SM60_NVLINK_BW"), 4, 3),
    "V100": Generation(Figure(_NVLINK_SHARE * 25e9, "0.83 × 25 GB/s of NVLink 2.0"), 6, 3),
    "A100": Generation(Figure(_NVLINK_SHARE * 25e9, "0.83 × 25 GB/s of NVLink 3.0"), 12, 4),
    **dict.fromkeys(
        ("A40", "A6000", "RTX3090", "sm86"),
        Generation(Figure(12e9, f"{_NCCL}: SM86_NVLINK_BW; {_BRIDGED}"), 4, 4),
    ),
    "H100": Generation(Figure(_NVLINK_SHARE * 25e9, "0.83 × 25 GB/s of NVLink 4.0"), 18, 5),
    "H200": Generation(Figure(_NVLINK_SHARE * 25e9, "0.83 × 25 GB/s of NVLink 4.0"), 18, 5),
    "B200": Generation(Figure(_NVLINK_SHARE * 50e9, "0.83 × 50 GB/s of NVLink 5.0"), 18, 5),
    "T4": Generation(_NO_NVLINK, 0, 3),
    "L4": Generation(_NO_NVLINK, 0, 4),
    "RTX4090": Generation(_NO_NVLINK, 0, 4),
}
"""Device type → its links."""

UNKNOWN = Generation(Figure(_NVLINK_SHARE * 25e9, "0.83 × 25 GB/s, as NVLink 2.0 to 4.0"), 18, 4)

TYPE_OF_SM = {60: "P100", 70: "V100", 80: "A100", 90: "H100", 100: "B200"}
"""Compute capability × 10 → device type; other capabilities are named ``sm86``."""

NVLINK_LATENCY_S = Figure(2e-6, "1.8 to 2.3 us from GPU to GPU (issue 230 of NVIDIA/cuda-samples)")
PCIE_HOP_LATENCY_S = Figure(2.5e-6, "two hops are 4 to 6 us between GPUs on one switch (p2pmark)")
SOCKET_BYTES_PER_S = Figure(10e9, f"{_NCCL}: SKL_QPI_BW")
SOCKET_LATENCY_S = Figure(5e-6, "GPUs of two sockets are 11 to 20 us apart (issue 230 of NVIDIA/cuda-samples)")

_CODES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
_MOST_LANES = 32
_SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def generation_of(device_type: str) -> Generation:
    """What is known of a device type's links; cautious values for one that is not in the table."""
    return GENERATIONS.get(device_type, UNKNOWN)


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
