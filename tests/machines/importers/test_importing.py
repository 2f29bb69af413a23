"""Descriptions of machines by other tools, in the variants that are around, and broken ones."""

import json
from pathlib import Path

import networkx as nx
import pytest
from machines.importers.samples import BRIDGED, DGX1, NCCL_XML, PCIE_BOX, RCCL_XML

from dlplacer.cli.main import main
from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.topology import Device, Topology
from dlplacer.files.load import load_topology
from dlplacer.machines.costs.roofline import rates_of
from dlplacer.machines.importers.any_format import import_topology
from dlplacer.machines.importers.products import machine_notes


@pytest.fixture
def imported(tmp_path: Path):
    def read(text: str, device_type: str | None = None) -> Topology:
        path = tmp_path / "box.txt"
        path.write_text(text)
        found = import_topology(path, device_type)
        found.save(tmp_path / "box.json")
        again = load_topology(tmp_path / "box.json")
        assert again.links == found.links
        return found

    return read


def links(topology: Topology) -> dict[tuple[str, str], tuple[int, float]]:
    return {(link.source, link.target): (link.count, link.bytes_per_s / 1e9) for link in topology.links}


def test_dgx1_has_its_cube_mesh_and_two_sockets(imported) -> None:
    box = imported(DGX1, "V100")
    found = links(box)
    assert [device.id for device in box.devices] == [f"gpu{number}" for number in range(8)]
    assert found["gpu0", "gpu3"] == (2, pytest.approx(20.75))
    assert found["gpu0", "gpu1"][0] == 1
    between = {ends: count for ends, (count, _) in found.items() if set(ends) <= set(box.device_index)}
    assert [sum(count for ends, count in between.items() if gpu in ends) for gpu in box.device_index] == [6] * 8
    assert [router.id for router in box.routers] == ["cpu0", "cpu1"]
    assert found["cpu0", "cpu1"][1] == pytest.approx(10)
    assert {ends for ends in found if "cpu1" in ends and ends[0].startswith("gpu")} == {
        (f"gpu{number}", "cpu1") for number in range(4, 8)
    }


def test_pcie_levels_become_a_tree(imported) -> None:
    box = imported(PCIE_BOX)
    found = links(box)
    assert {("gpu0", "pcie0"), ("gpu1", "pcie0"), ("pcie0", "bridge0"), ("gpu2", "bridge0")} <= found.keys()
    assert {("bridge0", "cpu0"), ("gpu3", "cpu0"), ("gpu4", "cpu1"), ("cpu0", "cpu1")} <= found.keys()
    assert len(found) == 8
    assert nx.is_connected(box.to_networkx())


def test_nccl_file(imported) -> None:
    box = imported(NCCL_XML)
    found = links(box)
    assert [(device.id, device.type) for device in box.devices] == [
        ("gpu0", "V100"),
        ("gpu1", "V100"),
        ("gpu2", "H100"),
    ]
    assert found["gpu0", "gpu1"][0] == 2
    assert found["gpu0", "pcie-0000:11:00.0"][1] == pytest.approx(12)
    assert found["gpu1", "pcie-0000:11:00.0"][1] == pytest.approx(6)
    assert found["gpu2", "cpu1"][1] == pytest.approx(24)
    assert found["gpu2", "nvswitch"][0] == 18
    assert found["cpu0", "cpu1"][1] == pytest.approx(10)


def test_node_link_of_networkx(imported) -> None:
    graph = nx.Graph(name="pair")
    graph.add_node("a", type="V100", memory_bytes="16 GiB", rack=7)
    graph.add_node("s", kind="switch")
    graph.add_node("b")
    graph.add_edge("a", "s", bandwidth="25 GB/s", latency="2 us")
    graph.add_edge("s", "b", bandwidth=1e9)
    for edges in ("edges", "links"):
        box = imported(json.dumps(nx.node_link_data(graph, edges=edges)))
        assert links(box) == {("a", "s"): (1, 25.0), ("s", "b"): (1, 1.0)}
        assert box.device("a").memory_bytes == 16 * 2**30
        assert box.device("a").meta == {"rack": 7}
        assert [router.id for router in box.routers] == ["s"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line with the columns GPU0"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "GPU1 has a column and no row"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV2\nGPU1\tNV1\tX\n", "GPU1 to GPU0 is NV1, but GPU0 to GPU1 is NV2"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "a DOCTYPE or ENTITY is not accepted"),
        ("<system><cpu></system>", "line 1, column"),
        (NCCL_XML.replace('count="2"', 'count="two"'), "count is 'two'"),
        ('{"nodes": [{"id": "a"}], "edges": [{"source": "a", "target": "b"}]}', r"edges\[0\]\.bytes_per_s: is req"),
        ('{"nodes": [{"id": "a"}, {"id": "a"}], "edges": []}', "given twice"),
        (
            '{"directed": true, "nodes": [{"id": "a"}, {"id": "b"}], "edges": [{"source": "a", "target": "b", "bw": 1},'
            ' {"source": "b", "target": "a", "bw": 2}]}',
            "the two directions differ",
        ),
    ],
)
def test_broken_files_name_the_place(imported, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        imported(text)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "topo.txt", tmp_path / "box.json"
    source.write_text(DGX1)
    assert main(["topology", "import", str(source), "--type", "V100", "-o", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text())
    source.write_text("no matrix")
    assert main(["topology", "import", str(source)]) == 2
    assert "topo.txt: 1 mistake" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "kind", "gib"), [("V100", "V100", 16), ("Tesla V100-SXM2-32GB", "V100", 32), ("H100", "H100", 80)]
)
def test_a_type_brings_memory_and_rates_from_the_table(imported, given: str, kind: str, gib: int) -> None:
    for text in (DGX1, NCCL_XML):
        box = imported(text, given)
        for device in box.devices:
            assert (device.type, device.memory_bytes) == (kind, gib * 2**30)
            assert rates_of(device) == rates_of(Device(kind, kind))
        assert machine_notes(box) == ()


def test_a_misspelt_type_is_refused_with_the_right_one(imported) -> None:
    for misspelt, right in (("V1OO", "V100"), ("RXT3090", "RTX3090"), ("RTX4070 Supper", "RTX4070Super")):
        with pytest.raises(InputError, match=rf"did you mean .*\b{right}\b"):
            imported(DGX1, misspelt)


def test_gpus_of_several_types(imported) -> None:
    box = imported(BRIDGED, "RTX3090,RTX3090,rtx 3060,Tesla V100-PCIE-32GB")
    assert [(device.type, device.memory_bytes) for device in box.devices] == [
        ("RTX3090", 24 * 2**30),
        ("RTX3090", 24 * 2**30),
        ("RTX3060", 12 * 2**30),
        ("V100-PCIe", 32 * 2**30),
    ]
    found = links(box)
    # The slot of each: PCIe 4.0 and 3.0.
    assert (found["gpu0", "cpu0"][1], found["gpu3", "cpu0"][1]) == (24, 12)


def test_links_between_two_types_are_as_fast_as_the_slower_one(imported) -> None:
    found = links(imported(NCCL_XML, "V100,P100,H100"))
    assert found["gpu0", "gpu1"] == (2, 18.0)


def test_types_that_do_not_fit_the_gpus_are_refused(imported) -> None:
    with pytest.raises(InputError, match="one each in this order"):
        imported(BRIDGED, "RTX3090,T4")
    with pytest.raises(InputError, match="T4 does not have"):
        imported(BRIDGED, "T4")


@pytest.mark.parametrize(
    ("gcn", "kind", "gib", "rate"),
    [("910", "MI250", 64, 36.0), ("gfx90a", "MI250", 64, 36.0), ("gfx942:sramecc+:xnack-", "MI300X", 192, 48.0)],
)
def test_rccl_file_has_xgmi_links_between_amd_gpus(imported, gcn: str, kind: str, gib: int, rate: float) -> None:
    box = imported(RCCL_XML.replace("910", gcn))
    assert [(device.type, device.memory_bytes) for device in box.devices] == [(kind, gib * 2**30)] * 2
    assert links(box)["gpu0", "gpu1"] == (2, rate)
    assert kind in box.meta["assumed"]
    assert imported(RCCL_XML, "MI210").devices[1].type == "MI210"


def test_files_of_powershell_are_read(tmp_path: Path) -> None:
    for name, encoding in (("plain", "utf-8"), ("other", "utf-16")):
        (tmp_path / name).write_bytes(PCIE_BOX.encode(encoding))
    plain, other = (import_topology(tmp_path / name) for name in ("plain", "other"))
    assert (other.devices, other.links) == (plain.devices, plain.links)


def test_types_are_given_to_ranges_of_gpus(imported) -> None:
    box = imported(BRIDGED.replace("NV4", "PHB"), "0-1=RTX3090,2=rtx 3060,3=Tesla V100-PCIE-32GB")
    assert [device.type for device in box.devices] == ["RTX3090", "RTX3090", "RTX3060", "V100-PCIe"]
    for given in ("0-2=RTX3090", "0-4=RTX3090", "0-3=RTX3090,2=T4", "3-0=RTX3090", "0,x=RTX3090", "0-3=RTX3090,4"):
        with pytest.raises(InputError, match="ranges of their numbers"):
            imported(BRIDGED, given)


def test_a_table_of_rocm_smi_is_refused_by_name(imported) -> None:
    with pytest.raises(FileFormatError, match="RCCL"):
        imported("ROCm System Management Interface\nGPU0 GPU1\n")
