"""A file of another tool as a topology, whatever the tool."""

from pathlib import Path

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Topology
from dlplacer.files.disk import read_bytes
from dlplacer.files.text import read_json
from dlplacer.machines.importers.nccl_xml import parse_nccl_xml
from dlplacer.machines.importers.node_link import topology_of_node_link
from dlplacer.machines.importers.nvidia_smi import parse_matrix
from dlplacer.machines.importers.nvidia_smi_topology import topology_of_matrix

MAX_BYTES = 64 * 2**20
"""A description of a machine is far smaller; what is larger is some other file."""


def import_topology(path: Path, device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL topology file or a node-link graph.

    The content decides which it is; a format is added here and in a module of its own.

    Parameters
    ----------
    device_type
        Type of the GPUs, where the file does not say (``nvidia-smi topo -m``).

    Raises
    ------
    InputError
        If the file cannot be read.
    FileFormatError
        If its content is none of these, with the place.
    """
    text = _read(path)
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        return parse_nccl_xml(text, str(path), path.stem)
    if start.startswith(("{", "[")):
        return topology_of_node_link(read_json(path), str(path), path.stem)
    return topology_of_matrix(parse_matrix(text, str(path)), device_type or "gpu", path.stem)


def _read(path: Path) -> str:
    try:
        content = read_bytes(path, MAX_BYTES)
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(str(path), [f"byte {error.start}: not UTF-8 text"]) from error
