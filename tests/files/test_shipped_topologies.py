"""The machines that ship: published structure and rates, a source for every number."""

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from dlplacer.core.topology import Topology
from dlplacer.files.formats import read_topology, topology_to_dict
from dlplacer.files.load import load_topology, shipped_folder, shipped_names

NAMES = shipped_names("topologies")
PROMISED = {
    *("cpu-2core", "dgx-a100", "dgx-h100", "dgx1-v100-2gpu", "dgx1-v100-4gpu", "dgx1-v100-8gpu"),
    *("dgx2-v100", "mixed-2gpu", "p2-8xlarge", "pcie-4gpu"),
}

# dgx1() of microsoft/msccl-tools: how many NVLinks join GPU i and GPU j of a DGX-1 V100.
CUBE_MESH = [
    [0, 2, 1, 1, 2, 0, 0, 0],
    [2, 0, 1, 2, 0, 1, 0, 0],
    [1, 1, 0, 2, 0, 0, 2, 0],
    [1, 2, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2, 1, 1],
    [0, 1, 0, 0, 2, 0, 1, 2],
    [0, 0, 2, 0, 1, 1, 0, 2],
    [0, 0, 0, 1, 1, 2, 2, 0],
]


def network(topology: Topology) -> "nx.Graph[str]":
    graph: nx.Graph[str] = topology.to_networkx()
    for _, _, data in graph.edges(data=True):
        data["latency_s"] = data["link"].latency_s
    return graph


def test_the_promised_machines_are_there() -> None:
    assert {*NAMES} >= PROMISED


@pytest.mark.parametrize("name", NAMES)
def test_devices_have_rates_and_reach_every_other(name: str) -> None:
    topology = load_topology(name)
    assert read_topology(topology_to_dict(topology), name) == topology
    for device in topology.devices:
        assert isinstance(device.flops_per_s, dict)
        assert {"float32"} <= {*device.flops_per_s} <= {"float16", "bfloat16", "float32", "float64"}
        assert device.memory_bytes_per_s
    assert nx.is_connected(network(topology))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_names_its_source(name: str) -> None:
    topology: Any = json.loads((Path(shipped_folder("topologies")) / f"{name}.json").read_text(encoding="utf-8"))
    assert topology["source"]
    sources = topology["meta"]["sources"]
    assert all(isinstance(text, str) and len(text) > 40 for text in sources.values())
    entries = topology["nodes"] + topology["edges"]
    assert [entry for entry in entries if not entry["meta"]["sources"]] == []
    assert {source for entry in entries for source in entry["meta"]["sources"]} == set(sources)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_dgx1_has_the_published_link_counts(size: int) -> None:
    topology = load_topology(f"dgx1-v100-{size}gpu")
    assert [device.id for device in topology.devices] == [f"gpu{i}" for i in range(size)]
    for i in range(size):
        for j in range(i):
            link = topology.link_between.get((f"gpu{i}", f"gpu{j}"))
            assert (link.count if link else 0) == CUBE_MESH[i][j], (i, j)


# PCIe latencies: 5 us under one switch, 10 us under one CPU, 15 us between the CPUs or when staged through the host.
@pytest.mark.parametrize(
    ("name", "source", "target", "latency_us"),
    [
        ("dgx1-v100-8gpu", "gpu0", "gpu2", 5),
        ("dgx1-v100-8gpu", "gpu0", "gpu1", 10),
        ("dgx1-v100-8gpu", "gpu0", "gpu4", 15),
        ("p2-8xlarge", "gpu0", "gpu7", 10),
        ("pcie-4gpu", "gpu0", "gpu1", 5),
        ("pcie-4gpu", "gpu0", "gpu3", 10),
        ("mixed-2gpu", "gpu0", "gpu1", 15),
    ],
)
def test_pcie_latency_between_gpus(name: str, source: str, target: str, latency_us: int) -> None:
    topology = load_topology(name)
    graph, gpus = network(topology), topology.device_index.keys()
    graph.remove_edges_from([ends for ends in graph.edges if set(ends) <= gpus])
    graph.remove_nodes_from(gpus - {source, target})
    assert nx.shortest_path_length(graph, source, target, weight="latency_s") == pytest.approx(1e-6 * latency_us)


# Published rates per GPU and direction: NVIDIA's 300, 600 and 900 GB/s count both directions.
@pytest.mark.parametrize(
    ("name", "gpus", "published_gb_per_s"), [("dgx2-v100", 16, 150), ("dgx-a100", 8, 300), ("dgx-h100", 8, 450)]
)
def test_nvswitch_rate_and_latency(name: str, gpus: int, published_gb_per_s: int) -> None:
    topology = load_topology(name)
    assert len(topology.devices) == gpus
    for device in topology.devices:
        rates = [link.total_bytes_per_s for ends, link in topology.link_between.items() if ends[0] == device.id]
        assert sum(rates) == pytest.approx(0.83 * published_gb_per_s * 1e9, rel=1e-3)
    assert nx.shortest_path_length(network(topology), "gpu0", "gpu7", weight="latency_s") == pytest.approx(2e-6)
