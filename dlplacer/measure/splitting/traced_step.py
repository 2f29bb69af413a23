"""A traced step that can be rewritten in many ways without being traced again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import fx

from dlplacer.frontend.torch.capture import Captured, default_rewrites, rewritten, trace_job
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.frontend.torch.tracing.joint import Traced
from dlplacer.frontend.torch.tracing.passes import apply_passes


@dataclass(frozen=True)
class TracedStep:
    """A job's step as traced, and the rewrites that come before any split.

    Attributes
    ----------
    traced
        Never changed: every rewrite works on a copy of its graph.
    """

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
