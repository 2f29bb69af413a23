"""A quick estimate of a pipeline beside a plan of op placement, as a hint to try one."""

import time
from dataclasses import dataclass
from typing import Any

from dlplacer.core.errors import DlplacerError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.planning.pipeline.pipeline_search import Search, batch_parts

MOST_OPS = 20_000
MOST_DEVICES = 16
_BUDGET_S = 0.6
_MOST_CHAINS = 500
_WANTED = (8, 16, 4, 2)


@dataclass(frozen=True)
class PipelineHint:
    """A pipeline found in passing: not the best, but one that there is."""

    schedule: str
    devices: int
    micro_batches: int
    step_s: float
    speedup: float | None
    makespan_s: float
    warnings: tuple[str, ...] = ()

    @property
    def is_faster(self) -> bool:
        """True if it is faster than the plan of op placement."""
        return self.step_s < self.makespan_s

    def to_dict(self) -> dict[str, Any]:
        """The field ``pipeline`` of ``dlplacer solve --json``."""
        return {
            "schedule": self.schedule,
            "devices": self.devices,
            "micro_batches": self.micro_batches,
            "step_s": self.step_s,
            "speedup": self.speedup,
            "faster": self.is_faster,
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        text = (
            f"a pipeline would be faster: {format_seconds(self.step_s)} per step against "
            f"{format_seconds(self.makespan_s)}, with {self.micro_batches} micro-batches on {self.devices} devices "
            f"({self.schedule}); see dlplacer pipeline"
        )
        return "; but ".join((text, *self.warnings))


def pipeline_hint(graph: OpGraph, topology: Topology, makespan_s: float) -> PipelineHint | None:
    """A pipeline over all devices, found in less than a second; None without a backward pass, or if there is none.

    Stages are cut along one order of the ops, and few numbers of micro-batches and sequences of devices are tried.

    Parameters
    ----------
    makespan_s
        Of the plan that it is compared with.
    """
    ranks = len(topology.devices)
    trains = any(op.phase == "backward" for op in graph.ops)
    if not trains or not 2 <= ranks <= MOST_DEVICES or len(graph.ops) > MOST_OPS:
        return None
    until = time.monotonic() + _BUDGET_S
    found: PipelineHint | None = None
    try:
        search = Search(graph, topology, most_cuts=0, most_chains=_MOST_CHAINS)
        parts = batch_parts(graph, ranks)
        for count in [count for count in _WANTED if count in parts]:
            if found is not None and time.monotonic() > until:
                break
            plan = search.plan(ranks, count, "1f1b")
            if found is None or plan.step_s < found.step_s:
                found = PipelineHint(plan.schedule, ranks, count, plan.step_s, plan.speedup, makespan_s, plan.warnings)
    except DlplacerError:
        return found
    return found
