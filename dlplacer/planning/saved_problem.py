"""A solve that contradicts itself leaves its problem in a file, so that a user can attach it to a report."""

import hashlib
import inspect
import json
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from dlplacer.core.errors import InputError, InternalError
from dlplacer.core.options import Options
from dlplacer.core.version import __version__
from dlplacer.files.graph_file import graph_to_dict
from dlplacer.files.text import write_json
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.planning.constrain import constrained

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
