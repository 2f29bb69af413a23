"""The device table against the chips: bus width × data rate, lanes × clock, and data sheets of those with HBM."""

import json
from pathlib import Path

import pytest

from dlplacer.core.topology import Device
from dlplacer.files.topology_file import read_topology
from dlplacer.machines.costs.device_table import DEVICE_TABLE, EFFICIENCY, FLOAT32, overhead_of
from dlplacer.machines.costs.roofline import rates_of

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"

# Bits of the memory bus, Gbit/s of a pin, float32 lanes, boost clock in MHz, GiB.
CHIPS = {
    "K80": (384, 5, 2496, 560, 12),
    "P40": (384, 7.2, 3840, 1531, 24),
    "T4": (256, 10, 2560, 1590, 16),
    "A10": (384, 12.5, 9216, 1695, 24),
    "A40": (384, 14.5, 10752, 1740, 48),
    "A4000": (256, 14, 6144, 1560, 16),
    "A5000": (384, 16, 8192, 1695, 24),
    "A6000": (384, 16, 10752, 1800, 48),
    "L4": (192, 12.5, 7424, 2040, 24),
    "L40": (384, 18, 18176, 2490, 48),
    "L40S": (384, 18, 18176, 2520, 48),
    "RTX6000Ada": (384, 20, 18176, 2505, 48),
    "RTXPRO6000": (512, 28, 24064, 2617, 96),
    "GTX1080Ti": (352, 11, 3584, 1582, 11),
    "RTX2080Ti": (352, 14, 4352, 1545, 11),
    "RTX3060": (192, 15, 3584, 1777, 12),
    "RTX3060Ti": (256, 14, 4864, 1665, 8),
    "RTX3070": (256, 14, 5888, 1725, 8),
    "RTX3070Ti": (256, 19, 6144, 1770, 8),
    "RTX3080": (320, 19, 8704, 1710, 10),
    "RTX3080-12GB": (384, 19, 8960, 1710, 12),
    "RTX3080Ti": (384, 19, 10240, 1665, 12),
    "RTX3090": (384, 19.5, 10496, 1695, 24),
    "RTX3090Ti": (384, 21, 10752, 1860, 24),
    "RTX4060": (128, 17, 3072, 2460, 8),
    "RTX4060Ti": (128, 18, 4352, 2535, 8),
    "RTX4070": (192, 21, 5888, 2475, 12),
    "RTX4070Super": (192, 21, 7168, 2475, 12),
    "RTX4070Ti": (192, 21, 7680, 2610, 12),
    "RTX4070TiSuper": (256, 21, 8448, 2610, 16),
    "RTX4080": (256, 22.4, 9728, 2505, 16),
    "RTX4080Super": (256, 23, 10240, 2550, 16),
    "RTX4090": (384, 21, 16384, 2520, 24),
    "RTX5060": (128, 28, 3840, 2497, 8),
    "RTX5060Ti": (128, 28, 4608, 2572, 8),
    "RTX5070": (192, 28, 6144, 2512, 12),
    "RTX5070Ti": (256, 28, 8960, 2452, 16),
    "RTX5080": (256, 30, 10752, 2617, 16),
    "RTX5090": (512, 28, 21760, 2407, 32),
    "MI50": (4096, 2, 3840, 1725, 16),
    "MI100": (4096, 2.4, 7680, 1502, 32),
    "MI210": (4096, 3.2, 6656, 1700, 64),
    "MI250": (4096, 3.2, 6656, 1700, 64),
    "MI250X": (4096, 3.2, 7040, 1700, 64),
    "MI300A": (8192, 5.2, 29184, 2100, 128),
    "MI300X": (8192, 5.2, 38912, 2100, 192),
    "MI325X": (8192, 6, 38912, 2100, 256),
    "MI350X": (8192, 8, 32768, 2200, 288),
    "MI355X": (8192, 8, 32768, 2400, 288),
    "RX7900XT": (320, 20, 10752, 2400, 20),
    "RX7900XTX": (384, 20, 12288, 2500, 24),
    "M1": (128, 4.266, 1024, 1278, None),
    "M1Pro": (256, 6.4, 2048, 1296, None),
    "M1Max": (512, 6.4, 4096, 1296, None),
    "M1Ultra": (1024, 6.4, 8192, 1296, None),
    "M2": (128, 6.4, 1280, 1398, None),
    "M2Pro": (256, 6.4, 2432, 1398, None),
    "M2Max": (512, 6.4, 4864, 1398, None),
    "M2Ultra": (1024, 6.4, 9728, 1398, None),
    "M3": (128, 6.4, 1280, 1380, None),
    "M3Pro": (192, 6.4, 2304, 1380, None),
    "M3Max": (512, 6.4, 5120, 1380, None),
    "M3Ultra": (1024, 6.4, 10240, 1380, None),
    "M4": (128, 7.5, 1280, 1470, None),
    "M4Pro": (256, 8.533, 2560, 1578, None),
    "M4Max": (512, 8.533, 5120, 1578, None),
    "P100": (4096, 1.43, 3584, 1480, 16),
    "P100-PCIe": (4096, 1.43, 3584, 1303, 16),
    "V100": (4096, 1.757, 5120, 1530, 16),
    "V100-PCIe": (4096, 1.757, 5120, 1380, 16),
    "A30": (3072, 2.43, 3584, 1440, 24),
    "A100": (5120, 3.19, 6912, 1410, 80),
    "A100-PCIe": (5120, 3.02, 6912, 1410, 80),
    "A100-40GB": (5120, 2.43, 6912, 1410, 40),
}


@pytest.mark.parametrize("name", sorted(CHIPS))
def test_figures_follow_from_bus_and_lanes(name: str) -> None:
    bits, gbit_per_s, lanes, mhz, gib = CHIPS[name]
    entry = DEVICE_TABLE[name]
    assert entry.memory_bytes_per_s == pytest.approx(bits * gbit_per_s / 8 * 1e9, rel=0.03)
    # A lane multiplies and adds in each cycle.
    assert entry.flops_per_s[FLOAT32] == pytest.approx(2 * lanes * mhz * 1e6, rel=0.03)
    assert entry.memory_bytes == (None if gib is None else gib * 2**30)


# Columns of the data sheets: float64, float32, float16, bfloat16 in TFLOP/s, memory in GB/s and GB. H100 and H200 print
# 1979 with sparsity, so 989 without; B200 4500, GB200 5000.
@pytest.mark.parametrize(
    ("name", "float64", "float32", "float16", "bfloat16", "memory", "gib"),
    [
        ("A100", 9.7, 19.5, 312, 312, 2039, 80),
        ("V100", 7.8, 15.7, 125, None, 900, 16),
        ("H100", 34, 67, 989, 989, 3350, 80),
        ("H100-PCIe", 26, 51, 756, 756, 2000, 80),
        ("H100-NVL", 30, 60, 835, 835, 3900, 94),
        ("H200", 34, 67, 989, 989, 4800, 141),
        ("H200-NVL", 30, 60, 835, 835, 4800, 141),
        ("B200", 37, 75, 2250, 2250, 7700, 180),
        ("GB200", 40, 80, 2500, 2500, 8000, 186),
    ],
)
def test_rates_are_those_of_the_data_sheet(
    name: str, float64: float, float32: float, float16: float, bfloat16: float | None, memory: float, gib: int
) -> None:
    entry = DEVICE_TABLE[name]
    listed = {"float64": float64, "float32": float32, "float16": float16, "bfloat16": bfloat16}
    expected = {dtype: rate * 1e12 for dtype, rate in listed.items() if rate is not None}
    assert dict(entry.flops_per_s) == pytest.approx(expected)
    assert (entry.memory_bytes_per_s, entry.memory_bytes) == (memory * 1e9, gib * 2**30)


def test_every_type_is_compared_with_something_and_names_its_source() -> None:
    others = {"H100", "H100-PCIe", "H100-NVL", "H200", "H200-NVL", "B200", "GB200", "cpu-core"}
    assert set(DEVICE_TABLE) == CHIPS.keys() | others
    assert all(len(entry.source) > 10 for entry in DEVICE_TABLE.values())
    assert EFFICIENCY.value <= 1


@pytest.mark.parametrize("kind", ["V100", "MyV100", "RTX4090", "xeon"])
def test_overhead_depends_on_the_kind_of_device_and_not_on_its_name(kind: str) -> None:
    gpu = Device("d", kind, flops_per_s=1e12, memory_bytes_per_s=1e11)
    assert overhead_of(gpu).value == 7e-6
    assert overhead_of(Device("d", kind, asynchronous=False)).value == 5e-6


@pytest.mark.parametrize("name", ["dgx1-v100-2gpu", "dgx2-v100", "dgx-a100", "dgx-h100", "cpu-2core"])
def test_shipped_topologies_agree_with_the_table(name: str) -> None:
    value = json.loads((TOPOLOGIES / f"{name}.json").read_text(encoding="utf-8"))
    for device in read_topology(value, name).devices:
        assert rates_of(device) == rates_of(Device(device.type, device.type))
