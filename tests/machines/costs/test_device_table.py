"""The device table against the chips: bus width × data rate, lanes × clock, and data sheets of those with HBM."""

import json
from pathlib import Path

import pytest

from dlplacer.core.topology import Device
from dlplacer.files.formats import read_topology
from dlplacer.machines.costs.device_table import DEVICE_TABLE, EFFICIENCY, FLOAT32, overhead_of
from dlplacer.machines.costs.roofline import rates_of

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"

LINES = Path(__file__).with_name("chips.txt").read_text(encoding="utf-8").splitlines()
CHIPS = {name: tuple(map(float, cells)) for name, *cells in (line.split() for line in LINES[1:])}


@pytest.mark.parametrize("name", sorted(CHIPS))
def test_figures_follow_from_bus_and_lanes(name: str) -> None:
    bits, gbit_per_s, lanes, mhz, gib = CHIPS[name]
    entry = DEVICE_TABLE[name]
    assert entry.memory_bytes_per_s == pytest.approx(bits * gbit_per_s / 8 * 1e9, rel=0.03)
    # A lane multiplies and adds in each cycle.
    assert entry.flops_per_s[FLOAT32] == pytest.approx(2 * lanes * mhz * 1e6, rel=0.03)
    assert entry.memory_bytes == (gib * 2**30 or None)


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
