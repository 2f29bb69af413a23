"""Blocks of ops that a pipeline cannot separate, and cuts between blocks, which delimit stages."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op

if TYPE_CHECKING:
    from networkx.utils import UnionFind


STAGE_INPUTS = ("input", "constant", "tangent")
"""Kinds of ops that every stage has itself, because a stage loads the data that it reads."""

_WEIGHTS = ("parameter", "buffer")
_CASTS = ("aten._to_copy",)
_LATER = ("backward", "optimizer")
_SMALL = 0.001


@dataclass(frozen=True, slots=True)
class Activation:
    """A tensor of the forward pass that ops of other blocks, or backward ops, read.

    `maker`, `readers`: Positions of blocks; the maker is not among the readers. `bytes`: Bytes for the whole batch.
    `gradient_bytes`: Bytes of the gradient: `bytes` if the tensor is float and depends on a trained weight, else 0.
    `is_saved`: True if a backward op reads the tensor, so that it is kept until then.
    """

    name: str
    maker: int
    readers: frozenset[int]
    bytes: int
    gradient_bytes: int
    is_saved: bool


@dataclass(frozen=True, slots=True)
class Tie:
    """A weight, or a buffer that no op writes, that several blocks read; each further stage gets a copy once per step.

    `home`: Position of the block with the weight and its first reader. `readers`: Positions of the other blocks that
    read the weight. `bytes`, `gradient_bytes`: Bytes sent to each further stage, and bytes sent back.
    """

    name: str
    home: int
    readers: frozenset[int]
    bytes: int
    gradient_bytes: int


@dataclass(frozen=True)
class Blocks:
    """The forward ops of a graph in blocks, in an order in which the blocks can run.

    `members`: [block] → positions of its forward ops, including weights. `backward`: [block] → positions of the
    backward and optimizer ops on the block's device. `before`: [block] → the blocks whose tensors it reads.
    """

    graph: OpGraph
    members: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    before: tuple[frozenset[int], ...]
    activations: tuple[Activation, ...]
    ties: tuple[Tie, ...] = ()

    @cached_property
    def weight_bytes(self) -> tuple[int, ...]:
        """[block] → bytes of weights, gradients and optimizer state."""
        ops = self.graph.ops
        return tuple(
            sum(ops[op].weight_bytes + ops[op].gradient_bytes + ops[op].state_bytes for op in (*ahead, *behind))
            for ahead, behind in zip(self.members, self.backward, strict=True)
        )

    @cached_property
    def workspace_bytes(self) -> tuple[int, ...]:
        """[block] → bytes of the largest workspace of its ops, for the whole batch."""
        ops = self.graph.ops
        return tuple(
            max((ops[op].workspace_bytes for op in (*ahead, *behind)), default=0)
            for ahead, behind in zip(self.members, self.backward, strict=True)
        )

    @property
    def trains(self) -> bool:
        """True if the graph has a backward pass."""
        return any(self.graph.ops[op].phase == "backward" for group in self.backward for op in group)


def blocks_of(graph: OpGraph) -> Blocks:
    """The finest blocks between which a pipeline can be cut.

    A weight, or a buffer that no op writes, is in the block of the first module that reads it or its cast. Any other
    buffer is in one block with all its readers, and so is a colocation group. An op without inputs from other ops (a
    fill, a cast of an input) joins its first reader if it takes at most a thousandth of the step. Blocks that wait for
    each other are merged. Other modules that read a weight are tied to it, and may be in other stages.

    Backward and update ops belong to the block whose gradients they compute. The first known of these decides: their
    colocation group, their weight's gradient, their module, the forward tensors and the gradients that they read.
    """
    from networkx.utils import UnionFind

    forward = [at for at, op in enumerate(graph.ops) if op.phase not in _LATER and op.kind not in STAGE_INPUTS]
    joined = UnionFind(forward)
    _join_weights(graph, joined)
    for group in graph.colocation_groups:
        if ahead := [at for name in group if (at := graph.index[name]) in joined.parents]:
            joined.union(*ahead)
    _join_fills(graph, joined)
    members, before = _ordered(graph, joined)
    block_of = {op: block for block, group in enumerate(members) for op in group}
    backward = _backward(graph, block_of, len(members))
    activations, ties = tuple(_activations(graph, block_of)), tuple(_ties(graph, block_of))
    return Blocks(graph, members, backward, before, activations, ties)


def _join_weights(graph: OpGraph, joined: "UnionFind") -> None:
    """Join a weight with its readers, and autocast's cast of a weight with the readers of the cast."""
    weights: set[str] = set()
    # A copy of a buffer that the step writes would be stale.
    written = {op.colocate for op in graph.ops if op.kind == "mutation"}
    for name in graph.topological_order:
        at, op = graph.index[name], graph.op(name)
        of_weight = op.kind in _CASTS and any(edge.source in weights for edge in graph.edges_into[name])
        if at in joined.parents and (op.kind in _WEIGHTS or of_weight):
            weights.add(name)
            targets = (graph.index[edge.target] for edge in graph.edges_from[name])
            readers = [target for target in targets if target in joined.parents]
            has_copies = op.kind == "parameter" or (op.kind == "buffer" and op.colocate not in written)
            # A reader in another module than the first reader may be in another stage.
            first = graph.ops[min(readers)].module if readers else None
            anywhere = not has_copies or first is None
            joined.union(at, *(one for one in readers if anywhere or graph.ops[one].module in (None, first)))


def _ties(graph: OpGraph, block_of: Mapping[int, int]) -> Iterator[Tie]:
    trained = _trained(graph)
    for at, home in block_of.items():
        op = graph.ops[at]
        edges = [edge for edge in graph.edges_from[op.id] if graph.index[edge.target] in block_of]
        others = frozenset(block_of[graph.index[edge.target]] for edge in edges) - {home}
        if op.kind in _WEIGHTS and others:
            size = max(edge.bytes for edge in edges)
            has_gradient = op.kind == "parameter" and (not trained or op.colocate in trained)
            yield Tie(op.id, home, others, size, size if has_gradient else 0)


def _join_fills(graph: OpGraph, joined: "UnionFind") -> None:
    known = [op.time_s if isinstance(op.time_s, Mapping) else {"": op.time_s or 0.0} for op in graph.ops]
    longest = [max(times.values(), default=0.0) for times in known]
    small_s = _SMALL * sum(longest)
    for name in reversed(graph.topological_order):
        at = graph.index[name]
        stage_inputs = not any(graph.index[edge.source] in joined.parents for edge in graph.edges_into[name])
        if at in joined.parents and stage_inputs and graph.ops[at].kind not in _WEIGHTS and longest[at] <= small_s:
            readers = sorted(
                reader for edge in graph.edges_from[name] if (reader := graph.index[edge.target]) in joined.parents
            )
            if readers:
                joined.union(at, readers[0])


def _ordered(graph: OpGraph, joined: "UnionFind") -> tuple[tuple[tuple[int, ...], ...], tuple[frozenset[int], ...]]:
    """The blocks, and the blocks before each, in a feasible order; sets that wait for each other are merged."""
    import networkx as nx

    sets = list(joined.to_sets())
    set_of = {op: number for number, group in enumerate(sets) for op in group}
    quotient = nx.DiGraph()
    quotient.add_nodes_from(range(len(sets)))
    quotient.add_edges_from(
        (set_of[graph.index[edge.source]], set_of[graph.index[edge.target]])
        for edge in graph.edges
        if graph.index[edge.source] in set_of and graph.index[edge.target] in set_of
    )
    quotient.remove_edges_from([(node, node) for node in quotient])
    condensed = nx.condensation(quotient)
    first = {node: min(min(sets[number]) for number in data["members"]) for node, data in condensed.nodes(data=True)}
    order = list(nx.lexicographical_topological_sort(condensed, key=first.__getitem__))
    place = {node: position for position, node in enumerate(order)}
    members = tuple(
        tuple(sorted(op for number in condensed.nodes[node]["members"] for op in sets[number])) for node in order
    )
    before = tuple(frozenset(place[other] for other in condensed.predecessors(node)) for node in order)
    return members, before


def _backward(graph: OpGraph, block_of: Mapping[int, int], count: int) -> tuple[tuple[int, ...], ...]:
    """[block] → its backward and update ops."""
    groups: dict[str, int] = {}
    for group in graph.colocation_groups:
        held = next((block_of[at] for name in group if (at := graph.index[name]) in block_of), None)
        groups |= {} if held is None else dict.fromkeys(group, held)
    modules: dict[str, Counter[int]] = defaultdict(Counter)
    for at, op in enumerate(graph.ops):
        if op.module and at in block_of:
            modules[op.module][block_of[at]] += 1
    home: dict[int, int] = {}
    found: list[list[int]] = [[] for _ in range(count)]
    for name in graph.topological_order:
        at = graph.index[name]
        op = graph.ops[at]
        if op.phase in _LATER and op.kind not in STAGE_INPUTS:
            home[at] = _home(graph, op, block_of, groups, modules, home)
            found[home[at]].append(at)
    return tuple(map(tuple, found))


def _home(
    graph: OpGraph,
    op: Op,
    block_of: Mapping[int, int],
    groups: Mapping[str, int],
    modules: Mapping[str, Counter[int]],
    home: Mapping[int, int],
) -> int:
    if op.id in groups:
        return groups[op.id]
    for edge in graph.edges_from[op.id]:
        target = graph.op(edge.target)
        if target.kind == "gradient" and target.id in groups:
            return groups[target.id]
    read = [graph.index[edge.source] for edge in graph.edges_into[op.id]]
    gradients = [home[at] for at in read if at in home]
    is_saved = [block_of[at] for at in read if at in block_of]
    if op.module is not None and op.module in modules:
        own = modules[op.module]
        stays = min((block for block in gradients if block in own), default=max(own, key=own.__getitem__))
        wanted = max((block for block in is_saved if block in own), default=stays)
    elif is_saved:
        wanted = max(is_saved)
    else:
        wanted = min(gradients, default=max(block_of.values(), default=0))
    return min([wanted, *gradients])


def _activations(graph: OpGraph, block_of: Mapping[int, int]) -> Iterable[Activation]:
    differentiable = _after_weights(graph, block_of)
    for at, block in block_of.items():
        op = graph.ops[at]
        if op.kind in _WEIGHTS:
            continue
        readers: dict[int, set[int]] = defaultdict(set)
        is_saved: dict[int, bool] = defaultdict(bool)
        size: dict[int, int] = {}
        for edge in graph.edges_from[op.id]:
            target = graph.index[edge.target]
            size[edge.output] = max(edge.bytes, size.get(edge.output, 0))
            if target in block_of:
                readers[edge.output].add(block_of[target])
            else:
                is_saved[edge.output] = True
        for output, size_bytes in size.items():
            others = frozenset(readers[output] - {block})
            if others or is_saved[output]:
                is_floating = output >= len(op.outputs) or "float" in op.outputs[output].dtype
                returns = at in differentiable and is_floating
                name = f"{op.id}:{output}"
                yield Activation(name, block, others, size_bytes, size_bytes if returns else 0, is_saved[output])


def _after_weights(graph: OpGraph, block_of: Mapping[int, int]) -> set[int]:
    """Ops whose results depend on a trained weight; all ops if the graph does not show the trained weights."""
    trained = _trained(graph)
    if not trained:
        return set(block_of)
    after: set[int] = set()
    for name in graph.topological_order:
        at = graph.index[name]
        op = graph.ops[at]
        if (op.kind == "parameter" and op.colocate in trained) or any(
            graph.index[edge.source] in after for edge in graph.edges_into[name]
        ):
            after.add(at)
    return after


def _trained(graph: OpGraph) -> set[str | None]:
    """Colocation groups of the weights with a gradient; empty if the graph has no ops of kind ``gradient``."""
    return {op.colocate for op in graph.ops if op.kind == "gradient"}


def require_stages(blocks: Blocks, stages: int) -> None:
    """Raise InfeasibleError if a graph has fewer blocks than stages."""
    if len(blocks.members) < stages:
        raise InfeasibleError(
            f"graph {blocks.graph.name!r} has {len(blocks.members)} parts that a pipeline can separate, fewer than the "
            f"{stages} stages asked for; use fewer stages"
        )


MOST_CUTS = 1500


@dataclass(frozen=True)
class Cuts:
    """The cuts of a graph, from the empty set to all blocks.

    `inside`: [cut, block] → whether the block is before the cut. `exact`: True if these are all cuts of the graph, and
    False if they follow one order of the blocks.
    """

    blocks: Blocks
    inside: Any
    exact: bool

    @property
    def count(self) -> int:
        """The number of cuts."""
        return int(self.inside.shape[0])

    @cached_property
    def nested(self) -> Any:
        """[earlier cut, later cut] → whether the earlier cut is a proper subset of the later one."""
        inside = self.inside.astype(np.float32)
        missing = inside @ (1 - inside).T
        return (missing == 0) & ~np.eye(self.count, dtype=bool)

    def total(self, per_block: Any) -> Any:
        """[cut] → Σ of a quantity over the blocks before the cut."""
        return self.inside @ np.asarray(per_block, dtype=float)

    @cached_property
    def forward_bytes(self) -> Any:
        """[cut] → bytes, for the whole batch, of the tensors that are produced before the cut and read after it.

        A tensor passes through every stage between the first and the last that use it.
        """
        return self._crosses @ np.array([tensor.bytes for tensor in self.blocks.activations], dtype=float)

    @cached_property
    def backward_bytes(self) -> Any:
        """[cut] → bytes, for the whole batch, of the gradients that cross the cut in the backward pass."""
        return self._crosses @ np.array([tensor.gradient_bytes for tensor in self.blocks.activations], dtype=float)

    @cached_property
    def _unsaved(self) -> Any:
        """[tensor] → its bytes if no backward op reads it, else 0; only stages that pass such a tensor on keep it."""
        activations = self.blocks.activations
        return np.array([0 if tensor.is_saved else tensor.bytes for tensor in activations], dtype=float)

    @cached_property
    def unstashed_bytes(self) -> Any:
        """[cut] → bytes of crossing tensors that no backward op reads, kept only as outputs of a stage."""
        return self._crosses @ self._unsaved

    @cached_property
    def passing_bytes(self) -> Any:
        """[earlier cut, later cut] → part of `unstashed_bytes` that crosses both cuts, and so passes the stage."""
        sizes = self._unsaved
        # A tensor that crosses only one cut passes through no stage; most tensors of a chain are like this.
        twice = np.flatnonzero((sizes > 0) & (self._crosses.sum(axis=0) > 1))
        crosses = self._crosses[:, twice].astype(float)
        return (crosses * sizes[twice]) @ crosses.T

    @cached_property
    def tied_bytes(self) -> Any:
        """[earlier cut, later cut] → bytes of copied weights in the stage between; other stages keep the originals.

        A trained weight counts twice: the copy, and its part of the gradient.
        """
        found = np.zeros((self.count, self.count))
        for tie in self.blocks.ties:
            readers = self.inside[:, sorted(tie.readers)]
            reads = (readers[None, :, :] & ~readers[:, None, :]).any(axis=2)
            keeps = self.inside[None, :, tie.home] & ~self.inside[:, None, tie.home]
            found += (reads & ~keeps) * float(tie.bytes + tie.gradient_bytes)
        return found

    @cached_property
    def saved_bytes(self) -> Any:
        """[cut] → bytes of the tensors that are produced before the cut and read by a backward op."""
        per_block = np.zeros(len(self.blocks.members))
        for tensor in self.blocks.activations:
            per_block[tensor.maker] += tensor.bytes if tensor.is_saved else 0
        return self.total(per_block)

    @cached_property
    def _crosses(self) -> Any:
        """[cut, tensor] → whether the tensor crosses the cut."""
        found = np.zeros((self.count, len(self.blocks.activations)), dtype=bool)
        for position, tensor in enumerate(self.blocks.activations):
            if tensor.readers:
                unread = ~self.inside[:, sorted(tensor.readers)].all(axis=1)
                found[:, position] = self.inside[:, tensor.maker] & unread
        return found


def cuts_of(blocks: Blocks) -> Cuts:
    """All cuts of a graph or, if there are more than `MOST_CUTS`, the cuts along one order of its blocks.

    A cut is a set of blocks together with all their predecessors (an order ideal), so data cross it in one direction.
    """
    count = len(blocks.members)
    found = _ideals(blocks)
    exact = found is not None
    if found is None:
        found = [(1 << position) - 1 for position in range(count + 1)]
    found.sort(key=lambda ideal: (ideal.bit_count(), ideal))
    rows = np.array([[ideal >> block & 1 for block in range(count)] for ideal in found], dtype=bool)
    return Cuts(blocks, rows.reshape(len(found), count), exact)


def _ideals(blocks: Blocks) -> list[int] | None:
    needs = [sum(1 << block for block in before) for before in blocks.before]
    found = {0}
    newest = [0]
    while newest:
        following = set()
        for ideal in newest:
            for block, needed in enumerate(needs):
                if not ideal >> block & 1 and needed & ~ideal == 0:
                    following.add(ideal | 1 << block)
        newest = [ideal for ideal in following if ideal not in found]
        found.update(newest)
        if len(found) > MOST_CUTS:
            return None
    return list(found)
