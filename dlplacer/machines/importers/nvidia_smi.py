"""The text of ``nvidia-smi topo -m`` as a topology: NVLinks, and the PCIe tree that explains the rest."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.importers.products import (
    HWLOC,
    PCIE_HOP_LATENCY_S,
    SOCKET_BYTES_PER_S,
    SOCKET_LATENCY_S,
    GivenTypes,
    assumed_links,
    device_of_type,
    link_figures,
    nvlinks,
    pcie_slot_bytes_per_s,
)

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+")
_CELL = re.compile(r"X|NV[0-9]{1,4}|PIX|PXB|PHB|NODE|SYS|SOC")
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Routes over PCIe, nearest first."""


@dataclass(frozen=True)
class TopoMatrix:
    """The connection type of every pair of GPUs.

    Attributes
    ----------
    cells
        [gpu][gpu] → ``X`` on the diagonal, ``NV<n>``, or one of `PATHS`; old ``SOC`` is read as ``SYS``.
    """

    gpus: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numa: tuple[str | None, ...]
    nics: tuple[str, ...] = ()

    @classmethod
    def unknown(cls, count: int) -> "TopoMatrix":
        """So many GPUs, of whose links nothing is known."""
        cells = tuple(tuple("X" if one == other else "SYS" for other in range(count)) for one in range(count))
        return cls(tuple(f"GPU{number}" for number in range(count)), cells, (None,) * count)

    def nvlinks(self, one: int, other: int) -> int:
        """The number of links in the matrix for a pair; 0 if it has none."""
        cell = self.cells[one][other]
        return int(cell[2:]) if cell.startswith("NV") else 0


def parse_matrix(text: str, where: str) -> TopoMatrix:
    """The matrix in the output of ``nvidia-smi topo -m``; legends, network devices and colours are skipped.

    Raises
    ------
    FileFormatError
        Naming the line and column that cannot be read.
    """
    lines = [(number, _ANSI.sub("", line).rstrip()) for number, line in enumerate(text.splitlines(), start=1)]
    header = next(((number, line) for number, line in lines if _is_header(line)), None)
    if header is None and re.match(r"\s*Machine(\s|L#)", text):
        raise FileFormatError(where, [HWLOC])
    if header is None:
        raise FileFormatError(where, ["no line with the columns GPU0, GPU1, …; paste the output of nvidia-smi topo -m"])
    columns = _columns(header[1])
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in lines[header[0] :]:
        fields = line.split()
        if not fields:
            if rows:
                break
            continue
        if _GPU.fullmatch(fields[0]):
            rows[fields[0]] = (number, fields[1:])
        elif fields[0] not in columns:
            break
    gpus = tuple(name for name in columns if _GPU.fullmatch(name))
    mistakes = [f"no row for {name}, which has a column" for name in gpus if name not in rows]
    mistakes += [f"line {number}: {name} has no column" for name, (number, _) in rows.items() if name not in gpus]
    if mistakes:
        raise FileFormatError(where, mistakes)
    links = columns[: next((place for place, name in enumerate(columns) if " " in name), len(columns))]
    return _checked(where, gpus, links, rows, tuple(name for name in links if name not in gpus), columns)


def _checked(
    where: str,
    gpus: tuple[str, ...],
    links: list[str],
    rows: dict[str, tuple[int, list[str]]],
    nics: tuple[str, ...],
    columns: list[str],
) -> TopoMatrix:
    mistakes: list[str] = []
    cells: list[tuple[str, ...]] = []
    for name in gpus:
        number, fields = rows[name]
        if len(fields) < len(links):
            mistakes.append(f"line {number}: {name} has {len(fields)} entries for {len(links)} columns")
            continue
        row = {column: "SYS" if field == "SOC" else field for column, field in zip(links, fields, strict=False)}
        for column in gpus:
            if not _CELL.fullmatch(row[column]) or (row[column] == "X") != (column == name):
                mistakes.append(f"line {number}: {name} to {column} is {row[column]!r}; X, NV<n> or {', '.join(PATHS)}")
        cells.append(tuple(row[column] for column in gpus))
    if not mistakes:
        for one, name in enumerate(gpus):
            for other in range(one):
                if cells[one][other] != cells[other][one]:
                    back = f"{gpus[other]} to {name} is {cells[other][one]}"
                    mistakes.append(f"{name} to {gpus[other]} is {cells[one][other]}, but {back}")
    if mistakes:
        raise FileFormatError(where, mistakes)
    has_numa = any("numa" in column.lower() for column in columns)
    numa = tuple(_numa(rows[name][1][len(links) :]) if has_numa else None for name in gpus)
    return TopoMatrix(gpus, tuple(cells), numa, nics)


def _is_header(line: str) -> bool:
    fields = line.split()
    return bool(fields) and bool(_GPU.fullmatch(fields[0])) and not any(_CELL.fullmatch(field) for field in fields[1:])


def _columns(line: str) -> list[str]:
    """Names of the columns: GPUs, network devices of any name, and names of several words, as ``CPU Affinity``."""
    return re.findall(r"GPU NUMA ID|(?:CPU|NUMA) Affinity|\S+", line)


def _numa(rest: list[str]) -> str | None:
    """The NUMA node behind the cores' list: ``0-23,48-71  0  N/A``."""
    return rest[1] if len(rest) > 1 and re.fullmatch(r"[0-9,-]+", rest[1]) else None


def imported_matrix(text: str, where: str, types: GivenTypes, name: str = "") -> Topology:
    """Devices ``gpu0``… in the output of ``nvidia-smi topo -m``, with memory and rates of the types given.

    Raises
    ------
    InputError
        If types are given to some GPUs only, or a pair has NVLinks that its type does not have.
    """
    matrix = parse_matrix(text, where)
    numbers = {gpu.lower(): gpu.removeprefix("GPU") for gpu in matrix.gpus}
    types.require_used(numbers)
    devices = tuple(device_of_type(gpu, types.of(gpu, number) or "gpu") for gpu, number in numbers.items())
    generations = [link_figures(device.type).pcie for device in devices]
    source = "nvidia-smi topo -m; rates by generation, see meta.assumed; memory by the device table"
    found = topology_of_matrix(matrix, devices, list(map(pcie_slot_bytes_per_s, generations)), name, source)
    joined = {
        end for one, other in combinations(range(len(devices)), 2) if matrix.nvlinks(one, other) for end in (one, other)
    }
    slots = ", ".join(dict.fromkeys(f"PCIe {generation}.0 x16" for generation in generations))
    assumed = {"pcie": slots, "socket": SOCKET_BYTES_PER_S.source}
    if joined:
        assumed["nvlink"] = assumed_links(devices[gpu] for gpu in sorted(joined))
    return replace(found, meta={"assumed": assumed, **found.meta})


def topology_of_matrix(
    matrix: TopoMatrix, devices: Sequence[Device], slots: Sequence[float], name: str = "", source: str = ""
) -> Topology:
    """The devices, joined as the matrix says.

    The matrix shows no switches: NVLinks to more GPUs than one GPU has links for lead into an NVSwitch. Where a pair
    has NVLinks its route over PCIe is not shown; GPUs are then put under the socket of their NUMA node. Rates of
    NVLinks are those of the device types, usual ones for a GPU without a type.
    """
    links, routers = _nvlinks(matrix, devices)
    tree_links, tree_routers = pcie_tree(matrix, [device.id for device in devices], slots)
    meta = {"network_devices": list(matrix.nics)} if matrix.nics else {}
    return Topology(tuple(devices), (*routers, *tree_routers), (*links, *tree_links), name, source, meta)


def _nvlinks(matrix: TopoMatrix, devices: Sequence[Device]) -> tuple[list[Link], list[Router]]:
    counts = {pair: matrix.nvlinks(*pair) for pair in combinations(range(len(devices)), 2)}
    of_gpu = [sum(count for pair, count in counts.items() if gpu in pair) for gpu in range(len(devices))]
    into_switch = {
        gpu: max(count for pair, count in counts.items() if gpu in pair)
        for gpu, total in enumerate(of_gpu)
        if total > link_figures(devices[gpu].type).links
    }
    direct = {pair: count for pair, count in counts.items() if count and not into_switch.keys() >= set(pair)}
    return nvlinks(dict(enumerate(devices)), direct, into_switch)


def pcie_tree(matrix: TopoMatrix, ids: Sequence[str], slots: Sequence[float]) -> tuple[list[Link], list[Router]]:
    """Switches from the nearest level to the sockets, each a router above the nodes that it joins.

    Parameters
    ----------
    slots
        Bytes per second of each GPU's slot; links between switches carry the least of them.
    """
    own, between = dict(zip(ids, slots, strict=True)), min(slots)
    sockets = _sockets(matrix)
    below: dict[int, str] = dict(enumerate(ids))
    routers, links = [], []
    for level, prefix in (("PIX", "pcie"), ("PXB", "bridge")):
        number = 0
        for group in _joined(matrix, level):
            children = list(dict.fromkeys(below[gpu] for gpu in group))
            if len(children) > 1:
                router = f"{prefix}{number}"
                number += 1
                routers.append(Router(router))
                links += [Link(child, router, own.get(child, between), PCIE_HOP_LATENCY_S.value) for child in children]
                below.update(dict.fromkeys(group, router))
    tops = []
    for number, group in enumerate(sockets):
        children = list(dict.fromkeys(below[gpu] for gpu in group))
        cpu = f"cpu{number}"
        routers.append(Router(cpu))
        tops.append(cpu)
        links += [Link(child, cpu, own.get(child, between), PCIE_HOP_LATENCY_S.value) for child in children]
    links += [
        Link(one, other, SOCKET_BYTES_PER_S.value, SOCKET_LATENCY_S.value) for one, other in combinations(tops, 2)
    ]
    return links, routers


def _sockets(matrix: TopoMatrix) -> list[list[int]]:
    """GPUs that reach each other without crossing sockets, NUMA nodes deciding where NVLinks hide the route."""
    groups = _joined(matrix, "NODE")
    by_numa: dict[str, list[int]] = {}
    merged: list[list[int]] = []
    for group in groups:
        numa = next((matrix.numa[gpu] for gpu in group if matrix.numa[gpu] is not None), None)
        if numa is None:
            merged.append(group)
        else:
            by_numa.setdefault(numa, []).extend(group)
    if merged and not by_numa and not any(cell == "SYS" for row in matrix.cells for cell in row):
        # Nothing tells sockets apart: one is assumed.
        return [[gpu for group in merged for gpu in group]]
    return sorted([*merged, *by_numa.values()])


def _joined(matrix: TopoMatrix, level: str) -> list[list[int]]:
    """GPUs connected by routes of at most this level."""
    near = set(PATHS[: PATHS.index(level) + 1])
    pairs = [pair for pair in combinations(range(len(matrix.gpus)), 2) if matrix.cells[pair[0]][pair[1]] in near]
    return components(range(len(matrix.gpus)), pairs)


def components(nodes: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Connected components, each sorted, in order of their first node."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(pairs)
    return sorted(sorted(component) for component in nx.connected_components(graph))
