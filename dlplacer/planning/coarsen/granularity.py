"""How fine a graph is: ATen ops, fused chains, or modules."""

import re
from collections.abc import Mapping
from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.planning.coarsen.contract import contract
from dlplacer.planning.coarsen.fuse import chains
from dlplacer.planning.coarsen.modules import by_module
from dlplacer.planning.coarsen.op_groups import acyclic_groups

FINEST = "aten"
_STORED = ("parameter", "buffer")
GRANULARITIES = (FINEST, "fused", "module")


def coarsen(graph: OpGraph, granularity: str) -> OpGraph:
    """The graph at a granularity; `origin` of every op that was made leads back to the ops of the given graph.

    Parameters and buffers stay ops. Those that one module reads are colocated with what reads them.

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
    kind = "fused" if granularity == "fused" else "module"
    label_of = chains(graph) if kind == "fused" else _of_equal_devices(graph, by_module(graph, depth))
    joining = {name: label for name, label in label_of.items() if graph.op(name).kind not in _STORED}
    coarse = contract(graph, acyclic_groups(graph, joining), kind, _with_readers(graph))
    if graph.capture is None:
        return coarse
    coarse = replace(coarse, capture={**graph.capture, "granularity": granularity})
    return replace(coarse, structure_sha256=structure_sha256(coarse))


def _with_readers(graph: OpGraph) -> dict[str, str]:
    """Op → module, of the parameters and buffers that only this module reads, and of its ops that read them."""
    together: dict[str, str] = {}
    for stored in graph.ops:
        if stored.kind in _STORED:
            readers = {edge.target for edge in graph.edges_from[stored.id]}
            modules = {graph.op(reader).module for reader in readers}
            devices = {graph.op(reader).devices for reader in readers}
            module = modules.pop() if len(modules) == 1 else None
            if module is not None and devices == {stored.devices}:
                together.update(dict.fromkeys((stored.id, *readers), module))
    return together


def _of_equal_devices(graph: OpGraph, label_of: Mapping[str, str]) -> dict[str, str]:
    """The labels, each taken apart where its ops name different devices or types.

    Whether a device is of a type, so that they have something in common, is the machine's to say. Ops that may run
    anywhere stay with the first.
    """
    named: dict[str, dict[tuple[str, ...], str]] = {}
    for op in graph.ops:
        if op.id in label_of and op.devices is not None:
            label = label_of[op.id]
            several = named.setdefault(label, {})
            several.setdefault(tuple(sorted(op.devices)), f"{label} on {', '.join(op.devices)}" if several else label)
    devices = {op.id: op.devices for op in graph.ops}
    return {
        name: label if (own := devices[name]) is None else named[label][tuple(sorted(own))]
        for name, label in label_of.items()
    }


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
