"""Graphs and machines of msr-fiddle/dnn-partitioning, the data of Tarnawski et al. 2020."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import FileModel, built, validated
from dlplacer.files.text import read_json

SOURCE = "msr-fiddle/dnn-partitioning (Tarnawski et al. 2020)"
_S_PER_MS = 1e-3
_BUS = "bus"

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Flag = bool | Annotated[int, Field(ge=0, le=1)]


class _Model(FileModel):
    # The files have different additional fields, such as `layerId`.
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Node(_Model):
    id: int
    name: str
    supportedOnFpga: Flag = True  # noqa: N815
    cpuLatency: Amount  # noqa: N815
    fpgaLatency: Amount  # noqa: N815
    isBackwardNode: Flag = False  # noqa: N815
    colorClass: int | None = None  # noqa: N815
    size: Amount


class _Edge(_Model):
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    cost: Amount
    size: Amount


class _Workload(_Model):
    maxSizePerFPGA: Amount  # noqa: N815
    maxFPGAs: Annotated[int, Field(ge=0)]  # noqa: N815
    maxCPUs: Annotated[int, Field(ge=0)]  # noqa: N815
    nodes: list[_Node]
    edges: list[_Edge]

    def mistakes(self) -> Iterator[str]:
        known = Counter(node.id for node in self.nodes)
        yield from (f"nodes: id {number} is given {count} times" for number, count in known.items() if count > 1)
        for place, edge in enumerate(self.edges):
            for number in (edge.sourceId, edge.destId):
                if number not in known:
                    yield f"edges[{place}]: there is no node {number}"

    @property
    def bytes_per_ms(self) -> float:
        """The bytes per ms that sizes and costs imply: a median, because some edges have the sizes of their readers."""
        return median([edge.size / edge.cost for edge in self.edges if edge.cost and edge.size] or [1.0])


def is_workload(value: Any) -> bool:
    """True if a parsed file is of this format."""
    return isinstance(value, dict) and "maxFPGAs" in value


def import_graph(path: Path) -> OpGraph:
    """The graph of a workload, with times on types ``accelerator`` and ``cpu``.

    Times and costs in the file are milliseconds. Colour classes become colocation groups; node sizes are weight bytes.
    Each node outputs one tensor, whose bytes are the largest cost of its edges × the rate of `topology_of_workload`.

    Raises FileFormatError with every mistake and its path.
    """
    value, where = read_json(path), str(path)
    if not is_workload(value):
        raise FileFormatError(where, ["'maxFPGAs' is missing, so this is not a workload of dnn-partitioning"])
    return built(where, _graph, validated(value, _Workload, where), path.stem)


def topology_of_workload(value: Any, where: str, name: str) -> Topology:
    """The machine of a workload: accelerators and CPUs on one bus, at the rate that the file's costs and sizes imply.

    In layer graphs the costs are a thousandth of the time at 2 GiB/s; they are kept because published results use them.
    """
    return built(where, _topology, validated(value, _Workload, where), name)


def _graph(content: _Workload, name: str) -> OpGraph:
    names, colours = (Counter(getattr(node, key) for node in content.nodes) for key in ("name", "colorClass"))
    known = {node.id: node.name if names[node.name] == 1 else f"{node.name}#{node.id}" for node in content.nodes}
    cost_ms: dict[int, float] = defaultdict(float)
    for edge in content.edges:
        cost_ms[edge.sourceId] = max(cost_ms[edge.sourceId], edge.cost)
    ops = tuple(
        Op(
            known[node.id],
            "layer",
            {"accelerator": node.fpgaLatency * _S_PER_MS, "cpu": node.cpuLatency * _S_PER_MS},
            weight_bytes=round(node.size),
            phase="backward" if node.isBackwardNode else "forward",
            colocate=f"colour {node.colorClass}"
            if node.colorClass is not None and colours[node.colorClass] > 1
            else None,
            devices=None if node.supportedOnFpga else ("cpu",),
        )
        for node in content.nodes
    )
    rate = content.bytes_per_ms
    edges = tuple(
        Edge(known[source], known[target], round(cost_ms[source] * rate), tensor=known[source])
        for source, target in dict.fromkeys((edge.sourceId, edge.destId) for edge in content.edges)
    )
    return OpGraph(ops, edges, name=name, source=SOURCE)


def _topology(content: _Workload, name: str) -> Topology:
    memory = round(content.maxSizePerFPGA)
    devices = (
        *(Device(f"accelerator{number}", "accelerator", memory) for number in range(content.maxFPGAs)),
        *(Device(f"cpu{number}", "cpu", asynchronous=False) for number in range(content.maxCPUs)),
    )
    links = tuple(Link(device.id, _BUS, content.bytes_per_ms / _S_PER_MS) for device in devices)
    return Topology(devices, (Router(_BUS),), links, name, SOURCE)
