"""The machines that ship: well-formed files, published structure, a source for every number."""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "topologies"
FILES = sorted(FOLDER.glob("*.json"))
PROMISED = {
    "cpu-2core",
    "dgx-a100",
    "dgx-h100",
    "dgx1-v100-2gpu",
    "dgx1-v100-4gpu",
    "dgx1-v100-8gpu",
    "dgx2-v100",
    "mixed-2gpu",
    "p2-8xlarge",
    "pcie-4gpu",
}

SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15} | {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
RATES = {f"{unit}/s": factor for unit, factor in SIZES.items()}
FLOP_RATES = {"FLOP/s": 1, "GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15}

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


def load(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def quantity(value: Any, units: Mapping[str, Fraction | int]) -> Fraction:
    """The exact value in SI base units; deliberately not the package's own parser."""
    if not isinstance(value, str):
        return Fraction(repr(value))
    number, unit = value.split()
    return Fraction(number) * units[unit]


def devices(topology: Any) -> dict[str, Any]:
    return {node["id"]: node for node in topology["nodes"] if node["kind"] == "device"}


def edge_map(topology: Any) -> dict[frozenset[str], Any]:
    return {frozenset((edge["source"], edge["target"])): edge for edge in topology["edges"]}


def network(topology: Any) -> "nx.Graph[str]":
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(node["id"] for node in topology["nodes"])
    for edge in topology["edges"]:
        graph.add_edge(edge["source"], edge["target"], latency_s=quantity(edge.get("latency_s", 0), SECONDS))
    return graph


def total_rate(edge: Any) -> Fraction:
    return quantity(edge["bytes_per_s"], RATES) * int(edge.get("count", 1))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def topology(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_promised_machines_are_there() -> None:
    assert {path.stem for path in FILES} >= PROMISED


def test_devices_have_a_type_and_positive_rates(topology: Any) -> None:
    for device in devices(topology).values():
        assert device["type"]
        assert set(device["flops_per_s"]) <= {"float16", "bfloat16", "float32", "float64"}
        assert "float32" in device["flops_per_s"]
        assert all(quantity(rate, FLOP_RATES) > 0 for rate in device["flops_per_s"].values())
        assert quantity(device["memory_bytes_per_s"], RATES) > 0
        if "memory_bytes" in device:
            size = quantity(device["memory_bytes"], SIZES)
            assert size > 0
            assert size.denominator == 1


def test_every_device_reaches_every_other(topology: Any) -> None:
    graph = network(topology)
    assert nx.is_connected(graph)
    for source in devices(topology):
        assert nx.descendants(graph, source) >= set(devices(topology)) - {source}


def test_every_number_names_its_source(topology: Any) -> None:
    assert topology["source"]
    sources = topology["meta"]["sources"]
    assert all(isinstance(text, str) and len(text) > 40 for text in sources.values())
    named = set()
    for entry in topology["nodes"] + topology["edges"]:
        assert entry["meta"]["sources"], entry
        named |= set(entry["meta"]["sources"])
    assert named == set(sources)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_dgx1_has_the_published_link_counts(size: int) -> None:
    topology = load(f"dgx1-v100-{size}gpu")
    assert list(devices(topology)) == [f"gpu{i}" for i in range(size)]
    edges = edge_map(topology)
    for i in range(size):
        for j in range(i):
            edge = edges.get(frozenset((f"gpu{i}", f"gpu{j}")))
            assert (edge.get("count", 1) if edge else 0) == CUBE_MESH[i][j], (i, j)


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
    topology = load(name)
    graph = network(topology)
    gpus = devices(topology)
    graph.remove_edges_from([ends for ends in graph.edges if set(ends) <= gpus.keys()])
    graph.remove_nodes_from(gpus.keys() - {source, target})
    assert nx.shortest_path_length(graph, source, target, weight="latency_s") == Fraction(latency_us, 10**6)


# Published rates per GPU and direction: NVIDIA's 300, 600 and 900 GB/s count both directions.
@pytest.mark.parametrize(
    ("name", "gpus", "published_gb_per_s"), [("dgx2-v100", 16, 150), ("dgx-a100", 8, 300), ("dgx-h100", 8, 450)]
)
def test_nvswitch_rate_per_gpu(name: str, gpus: int, published_gb_per_s: int) -> None:
    topology = load(name)
    rates = {node: Fraction(0) for node in devices(topology)}
    for edge in topology["edges"]:
        for end in rates.keys() & {edge["source"], edge["target"]}:
            rates[end] += total_rate(edge)
    assert len(rates) == gpus
    assert all(float(rate) == pytest.approx(0.83 * published_gb_per_s * 1e9, rel=1e-3) for rate in rates.values())


@pytest.mark.parametrize("name", ["dgx2-v100", "dgx-a100", "dgx-h100"])
def test_nvswitch_is_two_microseconds_away(name: str) -> None:
    graph = network(load(name))
    assert nx.shortest_path_length(graph, "gpu0", "gpu7", weight="latency_s") == Fraction(2, 10**6)
