"""How fine a graph is: ATen ops, fused chains, or modules."""

import re
from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.planning.coarsen.contract import contract
from dlplacer.planning.coarsen.fuse import chains
from dlplacer.planning.coarsen.modules import by_module
from dlplacer.planning.coarsen.op_groups import acyclic_groups

FINEST = "aten"
GRANULARITIES = (FINEST, "fused", "module")


def coarsen(graph: OpGraph, granularity: str) -> OpGraph:
    """The graph at a granularity; `origin` of every op that was made leads back to the ops of the given graph.

    Parameters
    ----------
    granularity
        ``aten``: as it is. ``fused``: chains of ops that always run together. ``module``: one op for each module and
        phase, where a module without sub-modules counts as part of the one that holds it. ``module:2``: one op for each
        module path cut after two names. Ops that would wait for each other in a circle stay apart.

    Raises
    ------
    InputError
        If the granularity is none of these, or the graph has been coarsened already.
    """
    depth = _depth(granularity)
    if granularity == FINEST:
        return graph
    described = graph.capture or {}
    if "granularity" in described:
        raise InputError(
            f"the graph has granularity {described['granularity']!r} already; start from the graph of ATen ops"
        )
    label_of = chains(graph) if granularity == "fused" else by_module(graph, depth)
    coarse = contract(graph, acyclic_groups(graph, label_of), "fused" if granularity == "fused" else "module")
    if graph.capture is None:
        return coarse
    coarse = replace(coarse, capture={**graph.capture, "granularity": granularity})
    return replace(coarse, structure_sha256=structure_sha256(coarse))


def _depth(granularity: str) -> int | None:
    """The depth that ``module:N`` names.

    Raises
    ------
    InputError
        If the text is no granularity.
    """
    named = re.fullmatch(r"module:([1-9]\d*)", granularity)
    if named is None and granularity not in GRANULARITIES:
        raise InputError(f"granularity is {granularity!r}; use one of {', '.join(GRANULARITIES)}, or module:DEPTH")
    return int(named[1]) if named else None
