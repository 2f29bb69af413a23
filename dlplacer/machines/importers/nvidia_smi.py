"""The text of ``nvidia-smi topo -m``, read as a topology of NVLinks and a PCIe tree."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.importers.products import (
    PCIE_HOP_LATENCY_S,
    SOCKET_BYTES_PER_S,
    SOCKET_LATENCY_S,
    SWITCH,
    device_of_type,
    given_types,
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

    `cells`: [gpu][gpu] → ``X`` on the diagonal, ``NV<n>``, or one of `PATHS`; old ``SOC`` is read as ``SYS``. `numa`:
    [gpu] → its NUMA node, if the matrix has it.
    """

    cells: tuple[tuple[str, ...], ...]
    numa: tuple[str | None, ...]

    @classmethod
    def unknown(cls, count: int) -> "TopoMatrix":
        """A matrix of `count` GPUs with unknown links."""
        cells = tuple(tuple("X" if one == other else "SYS" for other in range(count)) for one in range(count))
        return cls(cells, (None,) * count)

    def nvlinks(self, one: int, other: int) -> int:
        """The number of NVLinks between a pair of GPUs; 0 if there is none."""
        cell = self.cells[one][other]
        return int(cell[2:]) if cell.startswith("NV") else 0


def parse_matrix(text: str, where: str) -> TopoMatrix:
    """The matrix in the output of ``nvidia-smi topo -m``; legends, network devices and colours are skipped.

    Raises FileFormatError naming the GPU and column that cannot be read.
    """
    lines = [fields for line in text.splitlines() if (fields := _ANSI.sub("", line).split())]
    of_gpus = [fields for fields in lines if _GPU.fullmatch(fields[0])]
    header = next((fields for fields in of_gpus if not any(map(_CELL.fullmatch, fields))), [])
    gpus = [*takewhile(_GPU.fullmatch, header)]
    if not gpus:
        raise FileFormatError(where, ["no line with the columns GPU0, GPU1, …; paste the output of nvidia-smi topo -m"])
    rows = {fields[0]: fields[1:] for fields in of_gpus if fields is not header}
    cells = tuple(tuple("SYS" if cell == "SOC" else cell for cell in rows.get(gpu, ())[: len(gpus)]) for gpu in gpus)
    if (mistake := next(_mistakes(gpus, rows, cells), None)) is not None:
        raise FileFormatError(where, [mistake])
    # After the columns of network devices: the list of cores, then the NUMA node, as in ``0-23,48-71  0  N/A``.
    behind = len([*takewhile(lambda name: name not in ("CPU", "NUMA"), header)]) + 1
    nodes = (rows[gpu][behind : behind + 1] if "NUMA" in header else [] for gpu in gpus)
    return TopoMatrix(cells, tuple(node[0] if node and re.fullmatch(r"[0-9,-]+", node[0]) else None for node in nodes))


def _mistakes(gpus: Sequence[str], rows: dict[str, list[str]], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    for name in sorted(rows.keys() ^ set(gpus)):
        yield f"{name} has a {'row' if name in rows else 'column'} and no {'column' if name in rows else 'row'}"
    for row, name in enumerate(gpus):
        if len(cells[row]) < len(gpus):
            yield f"{name} has {len(cells[row])} entries for {len(gpus)} columns"
        for column, (cell, peer) in enumerate(zip(cells[row], gpus, strict=False)):
            if not _CELL.fullmatch(cell) or (cell == "X") != (column == row):
                yield f"{name} to {peer} is {cell!r}; X, NV<n> or {', '.join(PATHS)}"
            if column < row and cells[column][row] != cell:
                yield f"{name} to {peer} is {cell}, but {peer} to {name} is {cells[column][row]}"


def imported_matrix(text: str, where: str, device_type: str | None, name: str = "") -> Topology:
    """The machine in the output of ``nvidia-smi topo -m``: devices ``gpu0``… with memory and rates of the given types.

    Raises InputError if types are given to only some GPUs, or a pair has NVLinks that its type lacks.
    """
    matrix = parse_matrix(text, where)
    types = given_types(device_type, [f"gpu{number}" for number in range(len(matrix.cells))])
    devices = [device_of_type(gpu, kind or "gpu") for gpu, kind in types.items()]
    slots = [pcie_slot_bytes_per_s(link_figures(device.type).pcie) for device in devices]
    return topology_of_matrix(matrix, devices, slots, name, "nvidia-smi topo -m; figures by the device table")


def topology_of_matrix(
    matrix: TopoMatrix, devices: Sequence[Device], slots: Sequence[float], name: str = "", source: str = ""
) -> Topology:
    """The topology of `devices` with the links in `matrix`.

    The matrix shows no switches: if a row lists more NVLinks than the GPU has, they lead to an NVSwitch. For a pair
    with NVLinks the matrix hides the route over PCIe; such GPUs are put under the socket of their NUMA node. Rates of
    NVLinks are those of the device types, or usual ones for a GPU without a type.
    """
    counts = {pair: count for pair in combinations(range(len(devices)), 2) if (count := matrix.nvlinks(*pair))}
    of_gpu = [[count for pair, count in counts.items() if gpu in pair] for gpu in range(len(devices))]
    switched = {gpu for gpu, device in enumerate(devices) if sum(of_gpu[gpu]) > link_figures(device.type).links}
    ends: list[tuple[Device, Device | str, int]] = [
        (devices[one], devices[other], count) for (one, other), count in counts.items() if not switched >= {one, other}
    ]
    ends += [(devices[gpu], SWITCH, max(of_gpu[gpu])) for gpu in sorted(switched)]
    links, routers = pcie_tree(matrix, [device.id for device in devices], slots)
    switches = [Router(SWITCH)] if switched else []
    return Topology(tuple(devices), (*switches, *routers), (*nvlinks(ends), *links), name, source)


def pcie_tree(matrix: TopoMatrix, ids: Sequence[str], slots: Sequence[float]) -> tuple[list[Link], list[Router]]:
    """The links and routers of the PCIe tree, from the nearest switches up to the sockets.

    `slots`: Bytes per second of each GPU's slot; links between switches have the least of these rates.
    """
    own, between = dict(zip(ids, slots, strict=True)), min(slots)
    above = list(ids)
    routers: list[Router] = []
    links: list[Link] = []
    levels = (("pcie", _joined(matrix, "PIX")), ("bridge", _joined(matrix, "PXB")), ("cpu", _sockets(matrix)))
    for prefix, groups in levels:
        number = 0
        for group in groups:
            children = list(dict.fromkeys(above[gpu] for gpu in group))
            if len(children) > 1 or prefix == "cpu":
                router = f"{prefix}{number}"
                number += 1
                routers.append(Router(router))
                links += [Link(child, router, own.get(child, between), PCIE_HOP_LATENCY_S.value) for child in children]
                for gpu in group:
                    above[gpu] = router
    sockets = combinations(dict.fromkeys(above[group[0]] for group in levels[-1][1]), 2)
    return [*links, *(Link(*pair, SOCKET_BYTES_PER_S.value, SOCKET_LATENCY_S.value) for pair in sockets)], routers


def _sockets(matrix: TopoMatrix) -> list[list[int]]:
    """Sets of GPUs on one socket; if NVLinks hide the route, the NUMA node decides."""
    if not any(matrix.numa) and not any("SYS" in row for row in matrix.cells):
        # Nothing distinguishes sockets, so one is assumed.
        return [list(range(len(matrix.cells)))]
    sockets: dict[object, list[int]] = {}
    for number, group in enumerate(_joined(matrix, "NODE")):
        numa = next((node for gpu in group if (node := matrix.numa[gpu]) is not None), None)
        sockets.setdefault(number if numa is None else numa, []).extend(group)
    return sorted(sockets.values())


def _joined(matrix: TopoMatrix, level: str) -> list[list[int]]:
    """Sets of GPUs connected by routes of at most this level, each sorted, in order of their first GPU."""
    import networkx as nx

    near, count = PATHS[: PATHS.index(level) + 1], len(matrix.cells)
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pair for pair in combinations(range(count), 2) if matrix.cells[pair[0]][pair[1]] in near)
    return sorted(sorted(component) for component in nx.connected_components(graph))
