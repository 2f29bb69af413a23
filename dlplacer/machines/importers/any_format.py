"""A file of another tool as a topology, whatever the tool."""

from pathlib import Path

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.topology import Topology
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
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes; a description of a machine has at most {MAX_BYTES}"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(str(path), [f"byte {error.start}: not UTF-8 text"]) from error
