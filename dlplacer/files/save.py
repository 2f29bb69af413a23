"""A value as the file that its kind has."""

from os import PathLike
from pathlib import Path

from dlplacer.core.abilities import Shown
from dlplacer.core.expect import expect_path, refuse
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.files.graph_file import write_graph
from dlplacer.files.plan_file import write_plan
from dlplacer.files.text import write_json
from dlplacer.files.topology_file import write_topology


def save(value: object, path: str | PathLike[str]) -> Path:
    """Write a graph, a topology, a plan, or the plan of a result, and of other results the figures; returns the path.

    Raises
    ------
    InputError
        If the value has no file format, or the file cannot be written.
    """
    expect_path(path)
    if isinstance(value, OpGraph):
        write_graph(path, value)
    elif isinstance(value, Topology):
        write_topology(path, value)
    elif isinstance(value, Plan):
        write_plan(path, value)
    elif isinstance(value, Result):
        write_plan(path, value.plan)
    elif isinstance(value, Shown):
        write_json(Path(path), value.to_dict())  # type: ignore[attr-defined]
    else:
        raise refuse("", "what to save", value, "a graph, a topology, a plan or a result")
    return Path(path)
