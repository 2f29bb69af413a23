"""Load by path or by the bare name of what ships."""

from os import PathLike
from pathlib import Path

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.graph_file import read_graph
from dlplacer.files.locate import locate_graph, locate_topology
from dlplacer.files.plan_file import read_plan
from dlplacer.files.topology_file import read_topology


def load_graph(name: str | PathLike[str]) -> OpGraph:
    """The graph in a file, or one that ships: ``inception_v3-train``.

    Raises
    ------
    InputError
        If there is no such file.
    FileFormatError
        With every mistake and its path.
    """
    expect("", "name", name, (str, PathLike), "the path of a graph file, or the name of a graph that ships")
    return read_graph(locate_graph(str(name)))


def load_topology(name: str | PathLike[str]) -> Topology:
    """The topology in a file, or one that ships: ``dgx1-v100-2gpu``. Raises as `load_graph`."""
    expect("", "name", name, (str, PathLike), "the path of a topology file, or the name of a topology that ships")
    return read_topology(locate_topology(str(name)))


def load_plan(path: str | PathLike[str]) -> Plan:
    """The plan in a file; `dlplacer.check` decides whether it is valid. Raises as `load_graph`."""
    expect("", "path", path, (str, PathLike), "the path of a plan file")
    if not Path(path).exists():
        raise InputError(f"there is no plan file {str(path)!r}; `dlplacer solve MODEL TOPOLOGY -o PLAN` writes one")
    return read_plan(Path(path))
