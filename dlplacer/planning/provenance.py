"""The provenance of a plan: versions, choices, and hashes of graph and topology."""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.core.version import __version__
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
