"""This host, a stand-in for nvidia-smi, and links fitted to timed copies."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines.importers.samples import SMI_BOX

from dlplacer.cli.main import main
from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.machines.importers.host import detected_topology, gpu_topology, has_gpus, host_topology
from dlplacer.machines.importers.measured_links import SIZES_BYTES, doubts, fit_line, measured


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program of this name first on the path, which answers a query of GPUs and ``topo -m``."""

    def install(gpus: str, matrix: str | None) -> None:
        answer = "exit 1" if matrix is None else f"cat {tmp_path}/matrix"
        (tmp_path / "gpus").write_text(gpus)
        (tmp_path / "matrix").write_text(matrix or "")
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nif [ "$1" = topo ]; then {answer}; else cat {tmp_path}/gpus; fi\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


GPUS = """\
Tesla V100-SXM2-16GB, 16384, 3, 16
Tesla V100-SXM2-16GB, [N/A], 3, 8
NVIDIA H100 80GB HBM3, 81559, 5, 16
"""


def test_gpus_of_this_host(nvidia_smi) -> None:
    nvidia_smi(GPUS, SMI_BOX)
    box = detected_topology()
    assert [(device.id, device.type, device.memory_bytes) for device in box.devices] == [
        ("gpu0", "V100", 16 * 2**30),
        ("gpu1", "V100", 16 * 2**30),
        ("gpu2", "H100", 81559 * 2**20),
    ]
    links = {(link.source, link.target): link for link in box.links}
    assert links["gpu0", "gpu1"].count == 2
    assert links["gpu0", "cpu0"].bytes_per_s == pytest.approx(12e9)
    assert links["gpu1", "cpu0"].bytes_per_s == pytest.approx(6e9)
    assert links["gpu2", "cpu1"].bytes_per_s == pytest.approx(48e9)
    assert box.devices[0].meta["product"] == "Tesla V100-SXM2-16GB"
    nvidia_smi(GPUS, None)
    assert {link.source for link in gpu_topology().links} >= {"gpu0", "gpu1", "gpu2"}


def test_a_host_without_a_driver(nvidia_smi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi("No devices were found\n", None)
    with pytest.raises(InputError, match="reports no GPUs; it answers 'No devices"):
        gpu_topology()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r"no NVIDIA driver.*topology import"):
        gpu_topology()
    assert not has_gpus()


SHOWN = {4: 8e-4, 2**12: 8e-7, 2**16: 4e-4, 2**20: 8e-3, 2**24: 0.18, 2**26: 0.84}
"""Copies at about 100 MB/s, the smallest of which waited for 0.8 ms: least squares give a negative latency."""


def test_copies_that_contradict_each_other_are_doubted() -> None:
    assert "no line explains its copies" in fit_line(SHOWN).doubt
    pair = Topology((Device("a"), Device("b")), (), (Link("a", "b", 20e9, 2e-6, count=2),))
    found = measured(pair, lambda first, second, size: SHOWN[size], list(SHOWN))
    (link,) = found.links
    assert (link.bytes_per_s, link.latency_s, link.count) == (20e9, 2e-6, 2)
    assert "measured" not in link.meta
    assert found.source.endswith("; 0 of 1 links timed with copies of 4 B to 64 MiB")
    (text,) = doubts(found)
    assert re.match(r"link a – b: no line explains .* keeps the assumed 20 GB/s and 2 us: measure again", text)


@given(
    latency_s=st.floats(1e-6, 1e-4),
    rate=st.floats(1e8, 4e11),
    noise=st.lists(st.floats(0.9, 1.1), min_size=8, max_size=8),
    delayed=st.sets(st.sampled_from(range(8)), max_size=2),
    factor=st.floats(3, 3000),
)
def test_what_is_written_is_never_contradicted_by_its_copies(
    latency_s: float, rate: float, noise: list[float], delayed: set[int], factor: float
) -> None:
    """Copies over a link, up to two of eight of them delayed: the line is found, or doubted; never written if wrong."""
    times_s = {
        size: (latency_s + size / rate) * noise[place] * (factor if place in delayed else 1)
        for place, size in enumerate(SIZES_BYTES)
    }
    fit = fit_line(times_s)
    if fit.doubt:
        return
    assert fit.bytes_per_s >= 0.5 * max(size / time_s for size, time_s in times_s.items())
    assert fit.latency_s <= 1.5 * min(times_s.values())
    predicted = {size: fit.latency_s + size / fit.bytes_per_s for size in SIZES_BYTES}
    off = [size for size, time_s in times_s.items() if abs(predicted[size] - time_s) > 0.5 * time_s]
    assert len(off) <= 2
    undisturbed = [size for place, size in enumerate(SIZES_BYTES) if place not in delayed]
    near = [size for size in undisturbed if abs(predicted[size] / (latency_s + size / rate) - 1) < 0.8]
    assert len(near) >= len(undisturbed) - 2


def test_cores_are_timed_with_each_other() -> None:
    """A hand-over of 40 us crosses two links, so each takes half."""
    links = measured(host_topology([0, 2, 3]), lambda first, second, size: 40e-6, shared_memory=True).links
    assert [link.latency_s for link in links] == [pytest.approx(20e-6)] * 3


def test_detect_on_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "host.json"
    assert main(["topology", "detect", "--kind", "cpu", "--measure", "-o", str(target)]) == 0
    assert "cpu0" in capsys.readouterr().out
    assert main(["topology", "show", str(target), "--json"]) == 0
    code = main(["topology", "detect", "--kind", "gpu"])
    assert code == 0 or "no NVIDIA driver" in capsys.readouterr().err
