"""A traced step that can be rewritten in many ways without being traced again, and the axes along which ops are cut."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import fx

from dlplacer.frontend.torch.capture import Captured, default_rewrites, rewritten, trace_job
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import behind_views, is_folded
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.frontend.torch.splitting.pattern import Pattern
from dlplacer.frontend.torch.splitting.rules import patterns_of
from dlplacer.frontend.torch.tracing.joint import Traced
from dlplacer.frontend.torch.tracing.passes import apply_passes


@dataclass(frozen=True)
class TracedStep:
    """A job's step as traced, and the rewrites that come before any split; each works on a copy of its graph."""

    job: Job
    traced: Traced
    rewrites: tuple[str, ...]

    @classmethod
    def of(cls, job: Job, rewrites: Sequence[str] | None = None) -> "TracedStep":
        """Trace a job; None means the rewrites that a capture applies by default."""
        wanted = tuple(default_rewrites() if rewrites is None else rewrites)
        return cls(job, trace_job(job, wanted), wanted)

    def captured(self, splits: Sequence[OpSplit] = ()) -> Captured:
        """The graph and executable with these splits."""
        return rewritten(self.job, self._copy(), [*self.rewrites, *map(str, splits)])

    @cached_property
    def nodes(self) -> Mapping[str, fx.Node]:
        """The calls that splits may name, in order."""
        traced = self._copy()
        apply_passes(traced.module.graph, self.rewrites)
        return {node.name: node for node in traced.module.graph.nodes if node.op == "call_function"}

    def _copy(self) -> Traced:
        module, graph = self.traced.module, fx.Graph()
        copied = graph.graph_copy(module.graph, {}, return_output_node=True)
        assert isinstance(copied, tuple)
        graph.output(copied[0]).meta = dict(module.graph.output_node().meta)
        return replace(self.traced, module=fx.GraphModule(module, graph))


def splits_of(nodes: Mapping[str, fx.Node], ops: Collection[str], parts: int) -> list[OpSplit]:
    """A split for each op of a set that can be cut into that many parts, in graph order.

    An op is cut along the axis of the first value that it reads in parts: a pool that follows a norm cut along the
    channels is cut along them too. Where it reads none, or cannot follow, it is cut along the first axis that
    its rule names, which is the cheapest.
    """
    cut_along: dict[str, int] = {}
    found = []
    for name, node in nodes.items():
        if name not in ops:
            continue
        patterns = {axis: pattern for axis, pattern in patterns_of(node).items() if pattern.extent(node) >= parts}
        if not patterns:
            continue
        axis = next(iter((*_following(node, patterns, cut_along), *patterns)))
        found.append(OpSplit(name, axis, parts))
        first = patterns[axis].outputs
        cut_along[name] = next((dim for dim in first if dim is not None), 0)
    return found


def _following(node: fx.Node, patterns: Mapping[str, Pattern], cut_along: Mapping[str, int]) -> Iterable[str]:
    """Axes along which the first argument can be read in its existing parts."""
    first = node.args[0] if node.args else None
    read = first[0] if isinstance(first, (list, tuple)) and first else first
    dim = cut_along.get(behind_views(read).name) if isinstance(read, fx.Node) else None
    return [axis for axis, pattern in patterns.items() if dim is not None and pattern.inputs.get(0) == dim]


def neighbours(nodes: Mapping[str, fx.Node]) -> dict[str, tuple[set[str], set[str]]]:
    """Op that can be cut → the ops that it reads and those that read it, tuple unpacking and views left out."""
    around: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in nodes}
    for name, node in nodes.items():
        if not is_folded(node):
            for source in {behind_views(read).name for read in node.all_input_nodes} & around.keys():
                around[name][0].add(source)
                around[source][1].add(name)
    return {name: both for name, both in around.items() if patterns_of(nodes[name])}
