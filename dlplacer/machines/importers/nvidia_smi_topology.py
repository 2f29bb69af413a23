"""A topology from the matrix of ``nvidia-smi topo -m``: NVLinks, and the PCIe tree that explains the rest."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from dlplacer.core.topology import Link, Router, Topology
from dlplacer.machines.importers.nvidia_smi import PATHS, TopoMatrix
from dlplacer.machines.importers.products import device_of_type
from dlplacer.machines.importers.rates import (
    NVLINK_LATENCY_S,
    PCIE_HOP_LATENCY_S,
    SOCKET_BYTES_PER_S,
    SOCKET_LATENCY_S,
    generation_of,
    pcie_slot_bytes_per_s,
)

SWITCH = "nvswitch"


def topology_of_matrix(matrix: TopoMatrix, device_type: str = "gpu", name: str = "") -> Topology:
    """Devices ``gpu0``…, joined as the matrix says.

    The matrix shows no switches: NVLinks to more GPUs than one GPU has links for lead into an NVSwitch. Where a pair
    has NVLinks its route over PCIe is not shown; GPUs are then put under the socket of their NUMA node. Rates are those
    of the device type's generation (`dlplacer.machines.importers.rates`), or cautious ones for an unknown type.
    Memory and rates of the devices are those of the device table.

    Parameters
    ----------
    device_type
        A type, or the name of a product: ``V100``, ``A100-SXM4-40GB``.
    """
    ids = [gpu.lower() for gpu in matrix.gpus]
    devices = tuple(device_of_type(gpu, device_type) for gpu in ids)
    device_type = devices[0].type
    generation = generation_of(device_type)
    links, routers = _nvlinks(matrix, ids, device_type)
    tree_links, tree_routers = pcie_tree(matrix, ids, pcie_slot_bytes_per_s(generation.pcie))
    assumed = {
        "nvlink": generation.nvlink_bytes_per_s.source,
        "pcie": f"PCIe {generation.pcie}.0 x16",
        "socket": SOCKET_BYTES_PER_S.source,
    }
    meta = {"assumed": assumed} | ({"network_devices": list(matrix.nics)} if matrix.nics else {})
    return Topology(
        devices,
        (*routers, *tree_routers),
        (*links, *tree_links),
        name=name,
        source="nvidia-smi topo -m; rates by generation, see meta.assumed; memory by the device table",
        meta=meta,
    )


def _nvlinks(matrix: TopoMatrix, ids: Sequence[str], device_type: str) -> tuple[list[Link], list[Router]]:
    generation = generation_of(device_type)
    rate, latency_s = generation.nvlink_bytes_per_s.value, NVLINK_LATENCY_S.value
    counts = {pair: matrix.nvlinks(*pair) for pair in combinations(range(len(ids)), 2)}
    of_gpu = [sum(count for pair, count in counts.items() if gpu in pair) for gpu in range(len(ids))]
    switched = {gpu for gpu, total in enumerate(of_gpu) if total > generation.nvlinks}
    links = [
        Link(ids[one], ids[other], rate, latency_s, count=count)
        for (one, other), count in counts.items()
        if count and not (one in switched and other in switched)
    ]
    for gpu in sorted(switched):
        count = max(count for pair, count in counts.items() if gpu in pair)
        links.append(Link(ids[gpu], SWITCH, rate, latency_s / 2, count=count))
    return links, [Router(SWITCH)] if switched else []


def pcie_tree(matrix: TopoMatrix, ids: Sequence[str], slot: float) -> tuple[list[Link], list[Router]]:
    """Switches from the nearest level to the sockets, each a router above what it joins.

    Parameters
    ----------
    slot
        Bytes per second of a GPU's slot, and of every link between switches.
    """
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
                links += [Link(child, router, slot, PCIE_HOP_LATENCY_S.value) for child in children]
                below.update(dict.fromkeys(group, router))
    tops = []
    for number, group in enumerate(sockets):
        children = list(dict.fromkeys(below[gpu] for gpu in group))
        cpu = f"cpu{number}"
        routers.append(Router(cpu))
        tops.append(cpu)
        links += [Link(child, cpu, slot, PCIE_HOP_LATENCY_S.value) for child in children]
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
