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
    members: dict[str, list[Op]] = {}
    for op_id in graph.topological_order:
        op = graph.op(op_id)
        if op.kind in _PLACES:
            continue
        before = _chain_before(graph, op, label_of)
        label = before if before is not None and _fits(graph, op, members[before], label_of) else op_id
        label_of[op_id] = label
        members.setdefault(label, []).append(op)
    return {**label_of, **_places_within(graph, label_of)}


def _chain_before(graph: OpGraph, op: Op, label_of: Mapping[str, str]) -> str | None:
    """The chain from which the op reads all that it reads of its own phase."""
    read = {edge.source for edge in graph.edges_into[op.id] if edge.source in label_of}
    labels = {label_of[source] for source in read if graph.op(source).phase == op.phase}
    return labels.pop() if len(labels) == 1 else None


def _fits(graph: OpGraph, op: Op, chain: list[Op], label_of: Mapping[str, str]) -> bool:
    if sum(member.flops > 0 for member in (*chain, op)) > 1:
        return False
    if any((member.devices, member.colocate) != (op.devices, op.colocate) for member in chain):
        return False
    inside = {member.id for member in chain}
    readers = {edge.target for member in chain for edge in graph.edges_from[member.id]} - inside
    return all(reader == op.id or not _computes_in(graph.op(reader), op.phase) for reader in readers)


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
