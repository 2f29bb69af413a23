"""Granularity by module path: the ops of one module and one phase belong together."""

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import PHASES, Op

_LOOSE = frozenset({"input", "constant", "tangent"})
_SUFFIX = {"backward": ".backward", "optimizer": ".update"}
_OUTSIDE = "step"


def by_module(graph: OpGraph, depth: int | None = None) -> dict[str, str]:
    """Op → label of its module and phase: ``layer1.0``, ``layer1.0.backward``, ``layer1.0.update``.

    A module without sub-modules counts as part of the module that holds it. Ops outside all modules, as those of the
    loss, belong to ``step``; inputs stay alone.

    Parameters
    ----------
    depth
        Cut paths after that many names instead.
    """
    paths = {op.module for op in graph.ops if op.module}
    holders = {path[:position] for path in paths for position, letter in enumerate(path) if letter == "."}
    joining = (op for op in graph.ops if op.kind not in _LOOSE and not _waits_for_later(graph, op))
    return {op.id: _path(op, depth, holders) + _SUFFIX.get(op.phase or "", "") for op in joining}


def _waits_for_later(graph: OpGraph, op: Op) -> bool:
    """True if an op reads from a later phase than its own: a buffer that the backward pass still reads, overwritten."""
    phases = (graph.op(edge.source).phase for edge in graph.edges_into[op.id])
    return any(phase is not None and PHASES.index(phase) > PHASES.index(op.phase or PHASES[-1]) for phase in phases)


def _path(op: Op, depth: int | None, holders: set[str]) -> str:
    path = op.module or _OUTSIDE
    if depth is not None:
        return ".".join(path.split(".")[:depth])
    holder = path.rpartition(".")[0]
    return path if path in holders or not holder else holder
