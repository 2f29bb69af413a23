"""Granularities of a graph: ATen ops, fused chains, or modules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import networkx as nx

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import PHASES, Op
from dlplacer.files.formats import structure_sha256
from dlplacer.planning.coarsen.contract import contract

Node: TypeAlias = tuple[str, str, int]
"""An op of the contracted graph: ("group", label, 0), ("group", label, depth + 1) for a piece, or ("op", id, 0)."""


def acyclic_groups(graph: OpGraph, label_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Label → its ops in topological order, for every label with two ops or more.

    While groups wait for each other in a circle, the group that spans the most depth is cut into pieces by depth. The
    first piece keeps the label; later pieces get ``#2``, ``#3``, …. Depth grows along edges between groups and never
    falls along edges within a group, so pieces of different depth cannot wait for each other.

    `label_of`: Op → label; an op without a label stays alone.
    """
    whole = {op.id: ("group", label_of[op.id], 0) if op.id in label_of else ("op", op.id, 0) for op in graph.ops}
    depth = _depths(graph, whole)
    node_of = dict(whole)
    while widest := _widest_in_circles(graph, node_of, depth):
        node_of = {name: (*node[:2], depth[name] + 1) if node in widest else node for name, node in node_of.items()}
    pieces: dict[str, dict[Node, list[str]]] = {}
    for op_id in graph.topological_order:
        if op_id in label_of:
            pieces.setdefault(label_of[op_id], {}).setdefault(node_of[op_id], []).append(op_id)
    found: dict[str, tuple[str, ...]] = {}
    for label, by_node in pieces.items():
        several = (members for _, members in sorted(by_node.items()) if len(members) > 1)
        for number, members in enumerate(several, start=1):
            found[label if number == 1 else f"{label}#{number}"] = tuple(members)
    return found


def _widest_in_circles(graph: OpGraph, node_of: Mapping[str, Node], depth: Mapping[str, int]) -> set[Node]:
    """For every set of nodes that wait for each other, the node whose ops span the most depth."""
    quotient = nx.DiGraph()
    ends = ((node_of[edge.source], node_of[edge.target]) for edge in graph.edges)
    quotient.add_edges_from((source, target) for source, target in ends if source != target)
    circles = [part for part in nx.strongly_connected_components(quotient) if len(part) > 1]
    depths: dict[Node, list[int]] = {node: [] for part in circles for node in part}
    for name, node in node_of.items():
        if node in depths:
            depths[node].append(depth[name])
    return {max(part, key=lambda node: (max(depths[node]) - min(depths[node]), node)) for part in circles}


def _depths(graph: OpGraph, node_of: Mapping[str, Node]) -> dict[str, int]:
    """Op → the most edges between groups on any path to it; an op without inputs is as deep as its readers allow."""
    depth: dict[str, int] = {}
    for op_id in graph.topological_order:
        read = graph.edges_into[op_id]
        depth[op_id] = max((depth[edge.source] + _crosses(node_of, edge.source, op_id) for edge in read), default=0)
    # At depth 0 a weight would stretch its group; at its reader's depth the group need not be cut.
    for op in graph.ops:
        readers = graph.edges_from[op.id]
        if readers and not graph.edges_into[op.id]:
            depth[op.id] = min(depth[edge.target] - _crosses(node_of, op.id, edge.target) for edge in readers)
    return depth


def _crosses(node_of: Mapping[str, Node], source: str, target: str) -> bool:
    return node_of[source] != node_of[target]


_PLACES = frozenset({"parameter", "buffer", "input", "constant", "tangent", "gradient", "mutation", "update"})


def chains(graph: OpGraph) -> dict[str, str]:
    """Op → label of its chain.

    An op joins the chain that it reads from if, in its phase, nothing else reads from the chain and it reads from no
    other chain. A chain has at most one op with FLOPs: for example, a convolution with its normalisation and
    activation. Ops of other phases may read from it; tensors kept for the backward pass are its outputs. A parameter,
    buffer or gradient that only one chain uses joins that chain, with the op that overwrites it.
    """
    label_of: dict[str, str] = {}
    chain_of: dict[str, _Chain] = {}
    for op_id in graph.topological_order:
        op = graph.op(op_id)
        if op.kind in _PLACES:
            continue
        # The only chain of its own phase from which the op reads.
        read = {edge.source for edge in graph.edges_into[op_id] if edge.source in label_of}
        before = {label_of[source] for source in read if graph.op(source).phase == op.phase}
        label = next(iter(before)) if len(before) == 1 and chain_of[min(before)].admits(op) else op_id
        label_of[op_id] = label
        chain_of.setdefault(label, _Chain(op)).add(graph, op)
    return {**label_of, **_places_within(graph, label_of)}


class _Chain:
    """The data that decide if an op may join a chain; their size does not grow with the chain.

    `readers`: Computing ops of the same phase outside the chain that read from it.
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
        """Append an op."""
        self.has_flops |= op.flops > 0
        self.readers.discard(op.id)
        read_by, phase = (graph.op(edge.target) for edge in graph.edges_from[op.id]), self.first.phase
        self.readers.update(each.id for each in read_by if each.phase == phase and each.kind not in _PLACES)


def _places_within(graph: OpGraph, label_of: Mapping[str, str]) -> dict[str, str]:
    """Parameter, buffer, gradient or mutation → its chain, if its colocation group has edges to only one chain."""
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


_LOOSE = frozenset({"input", "constant", "tangent"})
_SUFFIX = {"backward": ".backward", "optimizer": ".update"}
_OUTSIDE = "step"


def by_module(graph: OpGraph) -> dict[str, str]:
    """Op → label of its module and phase: ``layer1.0``, ``layer1.0.backward``, ``layer1.0.update``.

    A module without sub-modules counts as part of its parent module. Ops outside all modules, such as the loss, belong
    to ``step``; inputs stay alone.
    """
    paths = {op.module for op in graph.ops if op.module}
    holders = {path[:position] for path in paths for position, letter in enumerate(path) if letter == "."}
    label_of = {}
    for op in graph.ops:
        # An op that reads from a later phase stays alone, because it overwrites a buffer that the backward pass reads.
        phases = (graph.op(edge.source).phase or PHASES[0] for edge in graph.edges_into[op.id])
        latest = max(map(PHASES.index, phases), default=0)
        if op.kind not in _LOOSE and latest <= PHASES.index(op.phase or PHASES[-1]):
            path = op.module or _OUTSIDE
            holder = path.rpartition(".")[0]
            label = path if path in holders or not holder else holder
            label_of[op.id] = label + _SUFFIX.get(op.phase or "", "")
    return label_of


FINEST = "aten"
_STORED = ("parameter", "buffer")
GRANULARITIES = (FINEST, "fused", "module")


def coarsen(graph: OpGraph, granularity: str) -> OpGraph:
    """The graph at a granularity; the `origin` of every contracted op lists ops of the original graph.

    Parameters and buffers stay ops of their own. If only one module reads them, they are colocated with their readers.

    `granularity`: ``aten``: unchanged. ``fused``: chains of ops that always run together. ``module``: one op for each
    module and phase, in which a module without sub-modules counts as part of its parent. Ops that would wait for each
    other in a circle stay apart.

    Raises InputError if the granularity is none of these, or the graph is already coarsened.
    """
    if granularity not in GRANULARITIES:
        raise InputError(f"granularity is {granularity!r}; use one of {', '.join(GRANULARITIES)}")
    if granularity == FINEST:
        return graph
    described = graph.capture or {}
    if "granularity" in described:
        raise InputError(
            f"the graph has granularity {described['granularity']!r} already; start from the graph of ATen ops"
        )
    label_of = chains(graph) if granularity == "fused" else by_module(graph)
    if granularity == "module":
        # A device's type is known only with the machine, so ops of a module that list different devices stay apart.
        named = {op.id: f" on {', '.join(sorted(op.devices))}" for op in graph.ops if op.devices is not None}
        label_of = {name: label + named.get(name, "") for name, label in label_of.items()}
    joining = {name: label for name, label in label_of.items() if graph.op(name).kind not in _STORED}
    coarse = contract(graph, acyclic_groups(graph, joining), granularity, _with_readers(graph))
    if graph.capture is None:
        return coarse
    coarse = replace(coarse, capture={**graph.capture, "granularity": granularity})
    return replace(coarse, structure_sha256=structure_sha256(coarse))


def _with_readers(graph: OpGraph) -> dict[str, str]:
    """Op → module, for parameters and buffers that only this module reads, and for its ops that read them."""
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
