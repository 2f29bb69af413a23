"""Speedups from the pipeline splitter, on the machine that a worker really gets."""

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.topology import Topology
from dlplacer.planning.hybrid.placed_workers import SplitPerMachine, WorkerSplit, shares_of
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline


class PipelinedWorkers(SplitPerMachine):
    """The best pipeline over all devices of a worker, with its number of micro-batches.

    Where the graph exceeds a machine's memory, or has fewer parts than the machine has devices, there is no split.
    """

    def _split(self, degree: int, topology: Topology) -> WorkerSplit | None:
        try:
            plan = plan_pipeline(self.graph, topology, stages=degree)
        except InfeasibleError:
            return None
        placed = ((name, stage.device) for stage in plan.stages for name in stage.ops)
        shares = shares_of(self.graph, placed, topology)
        return WorkerSplit(self.single_s / plan.step_s, "pipeline", plan.micro_batches, shares)
