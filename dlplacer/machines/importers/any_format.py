"""Import of another tool's file as a topology; the file's content decides the format."""

from pathlib import Path

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Topology
from dlplacer.files.text import read_json, read_text
from dlplacer.machines.importers.dnn_partitioning import is_workload, topology_of_workload
from dlplacer.machines.importers.nccl_xml import parse_nccl_xml
from dlplacer.machines.importers.node_link import topology_of_node_link
from dlplacer.machines.importers.nvidia_smi import imported_matrix
from dlplacer.machines.importers.products import with_types

MAX_BYTES = 64 * 2**20
"""Limit on the size of a file; descriptions of machines are far smaller."""


def import_topology(path: Path, device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL or RCCL topology file, a node-link graph or a workload.

    The content decides the format; a new format needs a module and a line here.

    `device_type`: Type or product of all GPUs (``V100``, ``A100-SXM4-40GB``), or one for each (``A40,A40,T4``). In a
    node-link graph it applies to devices without a type. Memory and rates come from the device table.

    Raises InputError if the file cannot be read or the device table lacks the type, and FileFormatError, with the
    place, if its content has none of these formats.
    """
    where = str(path)
    text = read_text(path, MAX_BYTES)
    start = text.lstrip()
    if start.startswith("<"):
        return parse_nccl_xml(text, where, path.stem, device_type)
    if start.startswith(("{", "[")):
        value = read_json(path)
        if is_workload(value):
            return topology_of_workload(value, where, path.stem)
        return with_types(topology_of_node_link(value, where, path.stem), device_type)
    if "XGMI" in text or "ROCm System Management" in text:
        told = "the table of rocm-smi or amd-smi, which gives neither the number of links between GPUs nor their rate"
        way_out = "run a program that uses RCCL with NCCL_TOPO_DUMP_FILE=topo.xml and import topo.xml"
        raise FileFormatError(where, [f"{told}; {way_out}"])
    return imported_matrix(text, where, device_type, path.stem)
