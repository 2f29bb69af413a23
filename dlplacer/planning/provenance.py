"""The provenance of a plan; and a file of the problem where a solve contradicts itself."""

import hashlib
import inspect
import json
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
from dlplacer.files.graph_file import graph_to_dict
from dlplacer.files.text import write_json
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.planning.constrain import constrained
from dlplacer.problem.problem import Problem


def provenance_of(problem: Problem, **choices: float) -> dict[str, Any]:
    """Versions, the choices given here, and hashes of graph and topology, for a plan."""
    from importlib.metadata import version

    return {
        "dlplacer": __version__,
        "ortools": version("ortools"),
        "python": platform.python_version(),
        **choices,
        **digests(problem),
    }


def digests(problem: Problem) -> dict[str, str]:
    """Hashes of graph and topology, computed once for a problem."""
    if digests not in problem.derived:
        problem.derived[digests] = {
            "graph_sha256": _digest(problem.graph),
            "topology_sha256": _digest(problem.topology),
        }
    return problem.derived[digests]  # type: ignore[no-any-return]


def _digest(value: OpGraph | Topology) -> str:
    """The hash of all that a graph or topology holds."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_held_by).encode()).hexdigest()


def _held_by(value: Any) -> Any:
    """The fields of a dataclass, or the entries of a mapping, as JSON knows them."""
    return dict(value) if isinstance(value, Mapping) else _fields_of(value.__class__)(value)


@cache
def _fields_of(kind: type) -> Callable[[Any], Any]:
    return attrgetter(*(each.name for each in fields(kind)))


Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


def saving_problem(function: Callable[Arguments, Found]) -> Callable[Arguments, Found]:
    """The function of a graph, a topology and options, whose `InternalError` names a file with all three."""
    signature = inspect.signature(function)

    @wraps(function)
    def saving(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        try:
            return function(*args, **kwargs)
        except InternalError as error:
            if error.problem_file is None:
                given = signature.bind(*args, **kwargs).arguments
                error.problem_file = _save(error, given)
            raise

    return saving


def _save(error: InternalError, given: dict[str, Any]) -> str | None:
    """Write the problem to the current directory, else to that of temporary files; the path."""
    graph = constrained(given["graph"], given["topology"], given.get("pins", ()), given.get("colocate", ()))
    value = {
        "format": "dlplacer.contradiction/1",
        "dlplacer": __version__,
        "message": str(error),
        "evidence": error.evidence,
        "choices": {name: entry for name, entry in given.items() if isinstance(entry, str | int | float)},
        "options": (given.get("options") or Options()).to_dict(),
        "topology": topology_to_dict(given["topology"]),
        "graph": graph_to_dict(graph),
    }
    digest = hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        path = folder / f"dlplacer-contradiction-{digest[:8]}.json"
        try:
            write_json(path, value)
        except (OSError, InputError):
            continue
        return str(path)
    return None
