"""Load and save files by path, or load a shipped graph or topology by its name."""

import os
from os import PathLike
from pathlib import Path
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.text import write_json

_FOLDERS = {"graph": "graphs", "topology": "topologies"}


def load_graph(name: str | PathLike[str]) -> OpGraph:
    """The graph in a file, or the shipped graph of a name such as ``inception_v3-train``.

    Raises InputError if there is no such file, and FileFormatError, with the path of every mistake, if it is invalid.
    """
    from dlplacer.files.formats import read_graph

    return read_graph(locate(name, "graph"))


def load_topology(name: str | PathLike[str]) -> Topology:
    """The topology in a file, or the shipped one of a name such as ``dgx1-v100-2gpu``. Errors as in `load_graph`."""
    from dlplacer.files.formats import read_topology

    return read_topology(locate(name, "topology"))


def load_plan(path: str | PathLike[str]) -> Plan:
    """The plan in a file; only `dlplacer.check` tests whether it obeys the rules. Errors as in `load_graph`."""
    from dlplacer.files.formats import read_plan

    expect("", "path", path, (str, PathLike), "the path of a plan file")
    if not Path(path).exists():
        raise InputError(f"there is no plan file {str(path)!r}; `dlplacer solve MODEL TOPOLOGY -o PLAN` writes one")
    return read_plan(Path(path))


def save(value: Any, path: str | PathLike[str]) -> Path:
    """Write a graph, a topology or a plan as its file, or another result as the JSON of `to_dict`; return the path.

    Raises InputError if the value has no file format, or the file cannot be written.
    """
    from dlplacer.files import formats

    told: dict[type, Any] = {OpGraph: formats.graph_to_dict, Topology: formats.topology_to_dict}
    told[Plan] = formats.plan_to_dict
    expect("", "what to save", value, Shown, "a graph, a topology, a plan or a result")
    write_json(path, told[type(value)](value) if type(value) in told else value.to_dict())
    return Path(path)


def shipped_folder(folder: str) -> Path:
    """The path of the shipped ``graphs`` or ``topologies``: installed in the package, or else next to it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "shipped" / folder
    return installed if installed.is_dir() else package.parent / folder


def shipped_names(folder: str) -> tuple[str, ...]:
    """The sorted names, without ``.json``, of the shipped files in a folder."""
    return tuple(sorted(entry.stem for entry in shipped_folder(folder).glob("*.json")))


def locate(name: str | PathLike[str], kind: str) -> Path:
    """The path of a ``graph`` or ``topology`` file; `name` is a path or the name of a shipped file.

    Raises InputError if there is no such file; the message lists the shipped names.
    """
    expect("", "name", name, (str, PathLike), f"the path of a {kind} file, or the name of one that ships")
    path, folder = Path(name), _FOLDERS[kind]
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    shipped = shipped_folder(folder)
    for candidate in (shipped / f"{name}.json", shipped / name, shipped / path.name):
        if os.path.isfile(candidate) and path.parent in (Path("."), Path(folder)):
            return candidate
    names = ", ".join(shipped_names(folder)) or "none"
    raise InputError(f"there is no {kind} file {str(name)!r}; give a path, or the name of one that ships: {names}")
