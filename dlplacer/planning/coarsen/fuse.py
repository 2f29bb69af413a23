"""Granularity of fused chains: ops that any sensible plan runs right after one another on one device."""

from collections.abc import Mapping

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op

_PLACES = frozenset({"parameter", "buffer", "input", "constant", "tangent", "gradient", "mutation", "update"})


def chains(graph: OpGraph) -> dict[str, str]:
    """Op → label of its chain.

    An op joins the chain before it if it is the only one of its phase that reads from that chain, reads nothing else of
    its phase, and a chain keeps one op with FLOPs at most: a convolution with the normalisation and the activation that
    follow. Ops of earlier phases may read along: what is kept for the backward pass leaves the chain as an output.
    A buffer that only one chain reads joins it, with the op that overwrites it.
    """
    label_of: dict[str, str] = {}
    chain_of: dict[str, _Chain] = {}
    for op_id in graph.topological_order:
        op = graph.op(op_id)
        if op.kind in _PLACES:
            continue
        before = _chain_before(graph, op, label_of)
        label = before if before is not None and chain_of[before].admits(op) else op_id
        label_of[op_id] = label
        chain_of.setdefault(label, _Chain(op)).add(graph, op)
    return {**label_of, **_places_within(graph, label_of)}


class _Chain:
    """What has to be known of a chain to let ops join it, whatever its length.

    Attributes
    ----------
    readers
        Ops of its phase outside of it that read from it and compute.
    """

    def __init__(self, first: Op) -> None:
        self.first, self.has_flops = first, False
        self.readers: set[str] = set()

    def admits(self, op: Op) -> bool:
        """True if an op that reads from the chain may join it."""
        if self.has_flops and op.flops > 0:
            return False
        if (self.first.devices, self.first.colocate) != (op.devices, op.colocate):
            return False
        return self.readers <= {op.id}

    def add(self, graph: OpGraph, op: Op) -> None:
        """Let an op join."""
        self.has_flops |= op.flops > 0
        self.readers.discard(op.id)
        read_by = (graph.op(edge.target) for edge in graph.edges_from[op.id])
        self.readers.update(reader.id for reader in read_by if _computes_in(reader, self.first.phase))


def _chain_before(graph: OpGraph, op: Op, label_of: Mapping[str, str]) -> str | None:
    """The chain from which the op reads all that it reads of its own phase."""
    read = {edge.source for edge in graph.edges_into[op.id] if edge.source in label_of}
    labels = {label_of[source] for source in read if graph.op(source).phase == op.phase}
    return labels.pop() if len(labels) == 1 else None


def _computes_in(op: Op, phase: str | None) -> bool:
    return op.phase == phase and op.kind not in _PLACES


def _places_within(graph: OpGraph, label_of: Mapping[str, str]) -> dict[str, str]:
    """Places of tensors whose whole colocation group deals with one chain only → that chain."""
    groups: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.kind in ("parameter", "buffer", "gradient", "mutation") and op.colocate is not None:
            groups.setdefault(op.colocate, []).append(op)
    found: dict[str, str] = {}
    for places in groups.values():
        own = {op.id for op in places}
        beside = {edge.target for op in places for edge in graph.edges_from[op.id]}
        beside |= {edge.source for op in places for edge in graph.edges_into[op.id]}
        chains_beside = {label_of.get(name) for name in beside - own}
        label = chains_beside.pop() if len(chains_beside) == 1 else None
        if label is not None and all(op.phase == graph.op(label).phase for op in places):
            found.update(dict.fromkeys(own, label))
    return found
