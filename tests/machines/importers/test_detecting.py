"""This host, NVML through a stand-in, and links fitted to timed copies."""

import random
from pathlib import Path

import pytest
from machines.importers.fake_nvml import FakeNvml

from dlplacer.cli.main import main
from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.importers.host import host_topology, parse_core_list
from dlplacer.machines.importers.measured_links import fit_line, measured
from dlplacer.machines.importers.nvml import nvml_topology, type_of_name
from dlplacer.machines.importers.rates import pcie_bytes_per_s, pcie_slot_bytes_per_s
from dlplacer.problem.routes import least_delay_routes


def test_nvml_box() -> None:
    nvml = FakeNvml()
    box = nvml_topology(nvml)
    assert nvml.open == 0
    assert [(device.type, device.memory_bytes) for device in box.devices] == [
        ("V100", 16 * 2**30),
        ("V100", 16 * 2**30),
        ("H100", 80 * 2**30),
    ]
    links = {(link.source, link.target): link for link in box.links}
    assert links["gpu0", "gpu1"].count == 2
    assert links["gpu2", "nvswitch"].count == 4
    assert links["gpu0", "pcie0"].bytes_per_s == pytest.approx(12e9)
    assert links["gpu2", "cpu1"].bytes_per_s == pytest.approx(48e9)
    assert box.devices[0].meta["product"] == "Tesla V100-SXM2-16GB"


def test_nvml_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"NVML does not start \(Driver Not Loaded\).*topology import"):
        nvml_topology(FakeNvml(driver=False))
    with pytest.raises(InputError, match="reports no GPUs"):
        nvml_topology(FakeNvml(count=0))


@pytest.mark.parametrize(
    ("product", "device_type"),
    [
        ("Tesla P100-SXM2-16GB", "P100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_types_of_products(product: str, device_type: str) -> None:
    assert type_of_name(product) == device_type


def test_pcie_rates_are_those_of_nccl() -> None:
    assert [round(pcie_slot_bytes_per_s(generation) / 1e9) for generation in (3, 4, 5)] == [12, 24, 48]
    assert pcie_bytes_per_s(2.5, 4) == pytest.approx(0.75e9)


def test_cores_of_two_numa_nodes(tmp_path: Path) -> None:
    for node, cores in enumerate(("0-1,4", "2-3,5")):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cores + "\n")
    box = host_topology(tmp_path, [0, 1, 2, 5])
    assert box.meta["numa"] == {"numa0": ["cpu0", "cpu1"], "numa1": ["cpu2", "cpu3"]}
    routes = least_delay_routes(box, (4,))[4]
    assert len(routes["cpu0", "cpu1"]) == 3
    assert len(routes["cpu0", "cpu3"]) == 4
    assert parse_core_list("0-2,7\n") == {0, 1, 2, 7}


def test_hosts_of_one_and_two_cores(tmp_path: Path) -> None:
    assert host_topology(tmp_path, [3]).links == ()
    pair = host_topology(tmp_path, [3, 5])
    assert [device.meta["core"] for device in pair.devices] == [3, 5]
    assert [(link.source, link.target) for link in pair.links] == [("cpu0", "cpu1")]


def test_lines_are_recovered_from_noisy_copies() -> None:
    draw = random.Random(1)
    sizes = [2**power for power in range(2, 27, 2)]
    for latency_s, rate in ((2e-6, 20e9), (15e-6, 1e9), (5e-6, 300e9)):
        fit = fit_line({size: (latency_s + size / rate) * draw.uniform(0.98, 1.02) for size in sizes})
        assert fit.latency_s == pytest.approx(latency_s, rel=0.05)
        assert fit.bytes_per_s == pytest.approx(rate, rel=0.05)
        assert fit.residual < 0.06
    assert fit_line({4: 3e-5, 2**20: 2.9e-5, 2**26: 3.1e-5}).bytes_per_s == pytest.approx(1e15)
    with pytest.raises(InputError, match="two sizes or more"):
        fit_line({4: 1e-6})


def test_a_slow_first_copy_does_not_decide_the_rate() -> None:
    """Copies at about 100 MB/s, the smallest waited for 0.8 ms: the line through all has a negative latency."""
    times_s = {4: 8e-4, 2**12: 8e-7, 2**16: 4e-4, 2**20: 8e-3, 2**24: 0.18, 2**26: 0.84}
    fit = fit_line(times_s)
    assert fit.latency_s == 0.0
    assert 80e6 < fit.bytes_per_s < 200e6


def test_measuring_replaces_assumed_links() -> None:
    box = Topology(
        (Device("gpu0"), Device("gpu1")),
        (Router("cpu0"), Router("cpu1")),
        (Link("gpu0", "gpu1", 1.0, 1.0, count=2), Link("gpu0", "cpu0", 1.0), Link("cpu0", "cpu1", 7.0)),
    )
    rates = {("gpu0", "gpu1"): 40e9, ("gpu0", "host"): 10e9}
    found = measured(box, lambda first, second, size: 3e-6 + size / rates[first, second])
    first, second, third = found.links
    assert (first.count, first.bytes_per_s, first.latency_s) == (1, pytest.approx(40e9), pytest.approx(3e-6))
    assert second.bytes_per_s == pytest.approx(10e9)
    assert third == box.links[2]
    assert first.meta["measured"]["residual"] == 0


def test_detect_on_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "host.json"
    assert main(["topology", "detect", "--kind", "cpu", "--measure", "-o", str(target)]) == 0
    assert "cpu0" in capsys.readouterr().out
    assert main(["topology", "show", str(target), "--json"]) == 0
    code = main(["topology", "detect", "--kind", "gpu"])
    assert code == 0 or "no NVIDIA driver" in capsys.readouterr().err
