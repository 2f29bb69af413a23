"""The device table: a source beside every number, and the numbers of the data sheets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlplacer.files.topology_file import topology_from_dict
from dlplacer.machines.costs.device_table import DEVICE_TABLE, EFFICIENCY, FLOAT32, Figure
from dlplacer.machines.costs.roofline import rates_of, rates_of_type

TOPOLOGIES = Path(__file__).resolve().parents[3] / "topologies"


def figures() -> Iterator[tuple[str, Figure]]:
    yield "efficiency", EFFICIENCY
    for name, entry in DEVICE_TABLE.items():
        for dtype, figure in entry.flops_per_s.items():
            yield f"{name} {dtype}", figure
        yield f"{name} memory", entry.memory_bytes_per_s
        yield f"{name} overhead", entry.overhead_s
        if entry.memory_bytes is not None:
            yield f"{name} size of the memory", entry.memory_bytes


@pytest.mark.parametrize("figure", [figure for _, figure in figures()], ids=[label for label, _ in figures()])
def test_every_number_is_positive_and_has_a_source(figure: Figure) -> None:
    assert figure.value > 0
    assert len(figure.source) > 20


def test_efficiency_is_a_share() -> None:
    assert EFFICIENCY.value <= 1


# Columns of the data sheets: float64, float32, float16, bfloat16 in TFLOP/s, memory in GB/s. H100 and H200 print 1979
# with sparsity, so 989 without; B200 4500 and L4 242, so 2250 and 121. Float64 of Turing is a thirty-second and of Ada
# a sixty-fourth of float32: 8.1 ÷ 32 = 0.25, 30.3 ÷ 64 = 0.47, 82.6 ÷ 64 = 1.29.
@pytest.mark.parametrize(
    ("name", "float64", "float32", "float16", "bfloat16", "memory"),
    [
        ("P100", 5.3, 10.6, 21.2, None, 732),
        ("V100", 7.8, 15.7, 125, None, 900),
        ("A100", 9.7, 19.5, 312, 312, 2039),
        ("H100", 34, 67, 989, 989, 3350),
        ("H200", 34, 67, 989, 989, 4800),
        ("B200", 37, 75, 2250, 2250, 7700),
        ("T4", 0.254, 8.1, 65, None, 320),
        ("L4", 0.473, 30.3, 121, 121, 300),
        ("RTX4090", 1.29, 82.6, 165.2, 165.2, 1008),
        # 3 GHz × 2 FMA units × 2 FLOP × 4 or 8 lanes = 48 or 96 GFLOP/s
        ("cpu-core", 0.048, 0.096, None, None, 12),
    ],
)
def test_rates_are_those_of_the_data_sheet(
    name: str, float64: float, float32: float, float16: float | None, bfloat16: float | None, memory: float
) -> None:
    entry = DEVICE_TABLE[name]
    listed = {"float64": float64, "float32": float32, "float16": float16, "bfloat16": bfloat16}
    expected = {dtype: rate * 1e12 for dtype, rate in listed.items() if rate is not None}
    assert {dtype: figure.value for dtype, figure in entry.flops_per_s.items()} == pytest.approx(expected)
    assert entry.memory_bytes_per_s.value == pytest.approx(memory * 1e9)


def test_overhead_is_7_us_on_gpus_and_5_us_on_a_core() -> None:
    overheads_s = {name: entry.overhead_s.value for name, entry in DEVICE_TABLE.items()}
    assert overheads_s.pop("cpu-core") == 5e-6
    assert set(overheads_s.values()) == {7e-6}


def test_memory_is_that_of_the_smallest_board() -> None:
    sizes = {name: entry.memory_bytes for name, entry in DEVICE_TABLE.items()}
    assert sizes.pop("cpu-core") is None
    gib = {name: figure.value / 2**30 for name, figure in sizes.items() if figure is not None}
    assert gib == {
        "P100": 16,
        "V100": 16,
        "A100": 80,
        "H100": 80,
        "H200": 141,
        "B200": 180,
        "T4": 16,
        "L4": 24,
        "RTX4090": 24,
    }


def test_every_type_has_a_float32_rate() -> None:
    assert all(FLOAT32 in entry.flops_per_s for entry in DEVICE_TABLE.values())


def test_no_dtype_is_slower_than_float64() -> None:
    for entry in DEVICE_TABLE.values():
        slowest = min(entry.flops_per_s.items(), key=lambda item: item[1].value)
        assert slowest[0] == "float64"


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DEVICE_TABLE["V100"] = DEVICE_TABLE["A100"]  # type: ignore[index]
    with pytest.raises(TypeError):
        DEVICE_TABLE["V100"].flops_per_s["float32"] = Figure(1, "guess")  # type: ignore[index]


@pytest.mark.parametrize("name", ["dgx1-v100-2gpu", "dgx2-v100", "dgx-a100", "dgx-h100", "cpu-2core"])
def test_shipped_topologies_agree_with_the_table(name: str) -> None:
    value = json.loads((TOPOLOGIES / f"{name}.json").read_text(encoding="utf-8"))
    for device in topology_from_dict(value, name).devices:
        assert rates_of(device) == rates_of_type(device.type)
