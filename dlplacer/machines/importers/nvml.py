"""The GPUs of this host as NVIDIA's management library (NVML) reports them."""

from collections import Counter
from itertools import combinations
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.importers.host import host_topology
from dlplacer.machines.importers.nvidia_smi import TopoMatrix, pcie_tree
from dlplacer.machines.importers.products import device_of_type
from dlplacer.machines.importers.rates import link_figures, nvlinks, pcie_slot_bytes_per_s

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t → the route as ``nvidia-smi topo -m`` names it; GPUs of one board count as one switch."""


_NODE_WORDS = 16
"""Words of 64 bits that hold the largest number of NUMA nodes that Linux is built for, 1024."""


def nvml_topology(nvml: Any = None) -> Topology:
    """Devices ``gpu0``… with type, memory, NVLinks and PCIe tree.

    Parameters
    ----------
    nvml
        The module ``pynvml``, or what stands in for it; None imports it.

    Raises
    ------
    InputError
        If the library is not installed, there is no driver, or there are no GPUs.
    """
    library = _library() if nvml is None else nvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise InputError(
            f"NVML does not start ({error}): this host has no NVIDIA driver; on the machine with the GPUs run "
            "`dlplacer topology detect`, or `nvidia-smi topo -m` and `dlplacer topology import` its output"
        ) from error
    try:
        return _read(library)
    except library.NVMLError as error:
        raise InputError(
            f"NVML does not tell of the GPUs ({error}); check nvidia-smi, or run `nvidia-smi topo -m` and "
            "`dlplacer topology import` its output"
        ) from error
    finally:
        library.nvmlShutdown()


def has_gpus() -> bool:
    """True if NVML starts and reports a GPU."""
    try:
        nvml_topology()
    except InputError:
        return False
    return True


def _library() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise InputError("reading GPUs needs the package nvidia-ml-py: pip install 'dlplacer[nvml]'") from error
    return pynvml


def _read(nvml: Any) -> Topology:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if not handles:
        raise InputError("NVML reports no GPUs; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    devices = tuple(_device(nvml, index, handle) for index, handle in enumerate(handles))
    cells = [["X"] * len(handles) for _ in handles]
    for one, other in combinations(range(len(handles)), 2):
        # Guests of WSL and of some hypervisors do not see the tree of their GPUs.
        level = _optional(nvml, "nvmlDeviceGetTopologyCommonAncestor", handles[one], handles[other])
        cells[one][other] = cells[other][one] = "SYS" if level is None else _ANCESTORS.get(int(level), "SYS")
    matrix = TopoMatrix(
        tuple(device.id.upper() for device in devices),
        tuple(map(tuple, cells)),
        tuple(_numa(nvml, handle) for handle in handles),
    )
    slots = [_slot(nvml, handle, device.type) for handle, device in zip(handles, devices, strict=True)]
    links, routers = pcie_tree(matrix, [device.id for device in devices], slots)
    direct, switched = _nvlinks(nvml, handles)
    gpu_links, switches = nvlinks(dict(enumerate(devices)), direct, switched)
    return Topology(devices, (*switches, *routers), (*gpu_links, *links), source="NVML; rates by generation")


def _device(nvml: Any, index: int, handle: Any) -> Device:
    name = _text(nvml.nvmlDeviceGetName(handle))
    # A GPU cut into instances (MIG) keeps its memory to its owner, and one that shares the host's has none.
    memory = _optional(nvml, "nvmlDeviceGetMemoryInfo", handle)
    memory_bytes = None if memory is None else int(memory.total)
    return device_of_type(f"gpu{index}", name, memory_bytes, {"product": name, "busid": _bus(nvml, handle)})


def _numa(nvml: Any, handle: Any) -> str | None:
    """The NUMA nodes of the host that are nearest to a GPU, or None if it does not say.

    ``nvmlDeviceGetNumaNodeId`` does not help: it names a node of the GPU's own memory, as on Grace Hopper.
    """
    scope = getattr(nvml, "NVML_AFFINITY_SCOPE_NODE", 0)
    words = _optional(nvml, "nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, scope) or ()
    nodes = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1]
    return ",".join(map(str, nodes)) or None


def _slot(nvml: Any, handle: Any, device_type: str) -> float:
    generation = _optional(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle) or link_figures(device_type).pcie
    width = _optional(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle) or 16
    return pcie_slot_bytes_per_s(int(generation), int(width))


def _nvlinks(nvml: Any, handles: list[Any]) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Links between two GPUs, which both ends count, and links into the switch."""
    at_bus = {_bus(nvml, handle): index for index, handle in enumerate(handles)}
    direct: Counter[tuple[int, int]] = Counter()
    switched: Counter[int] = Counter()
    for index, handle in enumerate(handles):
        for number in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 36))):
            if not _optional(nvml, "nvmlDeviceGetNvLinkState", handle, number):
                continue
            kind = _optional(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            remote = _optional(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            peer = None if remote is None else at_bus.get(_text(remote.busId).lower())
            if peer is not None:
                direct[min(index, peer), max(index, peer)] += 1
            elif kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched[index] += 1
    return {pair: max(1, count // 2) for pair, count in direct.items()}, switched


def _bus(nvml: Any, handle: Any) -> str:
    return _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()


def _optional(nvml: Any, name: str, *arguments: Any) -> Any:
    """The answer to a query, or None if the driver or the library does not know it."""
    query = getattr(nvml, name, None)
    if query is None:
        return None
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def detected_topology(kind: str = "auto") -> Topology:
    """The GPUs of this host or, without any, the cores of this process.

    Parameters
    ----------
    kind
        ``gpu``, ``cpu``, or ``auto``.

    Raises
    ------
    InputError
        If there are no GPUs and ``gpu`` is asked for.
    """
    gpus = kind == "gpu" or (kind == "auto" and has_gpus())
    return nvml_topology() if gpus else host_topology()
