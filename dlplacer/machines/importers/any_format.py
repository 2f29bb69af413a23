"""A file of another tool as a topology, whatever the tool."""

from dataclasses import replace
from pathlib import Path

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Topology
from dlplacer.files.disk import read_bytes
from dlplacer.files.text import read_json
from dlplacer.machines.importers.nccl_xml import parse_nccl_xml
from dlplacer.machines.importers.node_link import topology_of_node_link
from dlplacer.machines.importers.nvidia_smi import parse_matrix
from dlplacer.machines.importers.nvidia_smi_topology import topology_of_matrix
from dlplacer.machines.importers.products import device_of_type, require_known_type

UNTYPED = Device("any").type
"""The type of a device that was given none."""

MAX_BYTES = 64 * 2**20
"""A description of a machine is far smaller; what is larger is some other file."""


def import_topology(path: Path, device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL topology file or a node-link graph.

    The content decides which it is; a format is added here and in a module of its own.

    Parameters
    ----------
    device_type
        Type or product name of the devices, as ``V100`` or ``A100-SXM4-40GB``, whose memory and rates are taken from
        the device table: of all GPUs of ``nvidia-smi topo -m`` and of NCCL's file, and of those devices of a node-link
        graph that have no type.

    Raises
    ------
    InputError
        If the file cannot be read, or the device table does not have the type.
    FileFormatError
        If its content is none of these, with the place.
    """
    if device_type is not None:
        require_known_type(device_type)
    text = _read(path)
    start = text.lstrip()
    if start.startswith("<"):
        return parse_nccl_xml(text, str(path), path.stem, device_type)
    if start.startswith(("{", "[")):
        return _typed(topology_of_node_link(read_json(path), str(path), path.stem), device_type)
    return topology_of_matrix(parse_matrix(text, str(path)), device_type or "gpu", path.stem)


def _typed(topology: Topology, device_type: str | None) -> Topology:
    """The topology with a type, and what follows from it, for the devices that have none; what is given stays."""
    if device_type is None:
        return topology
    devices = tuple(device if device.type != UNTYPED else _of_type(device, device_type) for device in topology.devices)
    return replace(topology, devices=devices)


def _of_type(device: Device, device_type: str) -> Device:
    made = device_of_type(device.id, device_type, device.memory_bytes, device.meta)
    return replace(
        made,
        flops_per_s=device.flops_per_s or made.flops_per_s,
        memory_bytes_per_s=device.memory_bytes_per_s or made.memory_bytes_per_s,
    )


def _read(path: Path) -> str:
    try:
        content = read_bytes(path, MAX_BYTES)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(str(path), [f"byte {error.start}: not UTF-8 text"]) from error
