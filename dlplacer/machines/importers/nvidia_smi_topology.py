"""A topology from the matrix of ``nvidia-smi topo -m``: NVLinks, and the PCIe tree that explains the rest."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.importers.nvidia_smi import PATHS, TopoMatrix
from dlplacer.machines.importers.products import GivenTypes, device_of_type
from dlplacer.machines.importers.rates import (
    PCIE_HOP_LATENCY_S,
    SOCKET_BYTES_PER_S,
    SOCKET_LATENCY_S,
    assumed_links,
    link_figures,
    nvlinks,
    pcie_slot_bytes_per_s,
)


def topology_of_matrix(matrix: TopoMatrix, types: GivenTypes, name: str = "") -> Topology:
    """Devices ``gpu0``…, joined as the matrix says.

    The matrix shows no switches: NVLinks to more GPUs than one GPU has links for lead into an NVSwitch. Where a pair
    has NVLinks its route over PCIe is not shown; GPUs are then put under the socket of their NUMA node. Rates are those
    of the device types (`dlplacer.machines.costs.device_table`), usual ones for a GPU without a type.

    Raises
    ------
    InputError
        If types are given to some GPUs only, or a pair has NVLinks that its type does not have.
    """
    ids = [gpu.lower() for gpu in matrix.gpus]
    numbers = {gpu: gpu.removeprefix("gpu") for gpu in ids}
    types.require_used(numbers)
    kinds = [types.of(gpu, number) or "gpu" for gpu, number in numbers.items()]
    devices = tuple(map(device_of_type, ids, kinds))
    links, routers = _nvlinks(matrix, devices)
    slots = [pcie_slot_bytes_per_s(link_figures(device.type).pcie) for device in devices]
    tree_links, tree_routers = pcie_tree(matrix, ids, slots)
    assumed = {"pcie": _slots_of(devices), "socket": SOCKET_BYTES_PER_S.source}
    if joined := {end for link in links for end in (link.source, link.target)}:
        assumed["nvlink"] = assumed_links(device for device in devices if device.id in joined)
    meta = {"assumed": assumed} | ({"network_devices": list(matrix.nics)} if matrix.nics else {})
    return Topology(
        devices,
        (*routers, *tree_routers),
        (*links, *tree_links),
        name=name,
        source="nvidia-smi topo -m; rates by generation, see meta.assumed; memory by the device table",
        meta=meta,
    )


def _slots_of(devices: Sequence[Device]) -> str:
    return ", ".join(dict.fromkeys(f"PCIe {link_figures(device.type).pcie}.0 x16" for device in devices))


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
