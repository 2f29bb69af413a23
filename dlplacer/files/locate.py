"""Which file a name on the command line means: a path, or the bare name of a graph or topology that ships."""

import os
from pathlib import Path

from dlplacer.core.errors import InputError


def locate_graph(name: str) -> Path:
    """The path of a graph file; bare names such as ``inception_v3-train`` mean graphs that ship with dlplacer.

    Raises
    ------
    InputError
        If there is no such file; the message lists the names that ship.
    """
    return _locate(name, "graphs", "graph")


def locate_topology(name: str) -> Path:
    """The path of a topology file, as `locate_graph`; for example ``dgx1-v100-2gpu``."""
    return _locate(name, "topologies", "topology")


def shipped_folder(folder: str) -> Path:
    """Where the files of a folder (``graphs``, ``topologies``) are: next to the package, or installed in it."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "shipped" / folder
    return installed if installed.is_dir() else package.parent / folder


def shipped_names(folder: str) -> tuple[str, ...]:
    """The bare names of the files that ship in a folder, sorted."""
    return tuple(sorted(entry.stem for entry in shipped_folder(folder).glob("*.json")))


def _locate(name: str, folder: str, kind: str) -> Path:
    path = Path(name)
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    shipped = shipped_folder(folder)
    for candidate in (shipped / f"{name}.json", shipped / name, shipped / path.name):
        if os.path.isfile(candidate) and path.parent in (Path("."), Path(folder)):
            return candidate
    names = ", ".join(shipped_names(folder)) or "none"
    raise InputError(f"there is no {kind} file {name!r}; give a path, or the name of one that ships: {names}")
