"""Speedups from the pipeline splitter, on the machine that a worker really gets."""

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.planning.hybrid.placed_workers import WorkerSplit
from dlplacer.planning.hybrid.worker_layout import signature
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline


class PipelinedWorkers:
    """The best pipeline over all devices of a worker, with its number of micro-batches.

    Machines that differ in names alone are planned once. Where the graph exceeds a machine's memory, or has fewer parts
    than the machine has devices, there is no split.

    Parameters
    ----------
    single_s
        Step time on one device, to which speedups refer.
    """

    def __init__(self, graph: OpGraph, single_s: float) -> None:
        if not single_s > 0:
            raise InputError(f"step time on one device is {single_s} s; it must be positive")
        self.graph, self.single_s = graph, single_s
        self.planned: dict[tuple[object, ...], WorkerSplit | None] = {}

    def __call__(self, degree: int, topology: Topology | None) -> WorkerSplit | None:
        """The pipeline on a worker's machine as a split, or None."""
        if topology is None:
            raise InputError("a pipeline needs the machine of a worker; give the planner a topology")
        key = signature(topology)
        if key not in self.planned:
            self.planned[key] = self._plan(degree, topology)
        return self.planned[key]

    def _plan(self, degree: int, topology: Topology) -> WorkerSplit | None:
        try:
            plan = plan_pipeline(self.graph, topology, stages=degree)
        except InfeasibleError:
            return None
        return self._split(plan, topology)

    def _split(self, plan: PipelinePlan, topology: Topology) -> WorkerSplit:
        held = dict.fromkeys(topology.device_index, 0)
        for stage in plan.stages:
            held[stage.device] += sum(self.graph.op(name).gradient_bytes for name in stage.ops)
        total = sum(held.values())
        shares = tuple(size / total for size in held.values()) if total else ()
        return WorkerSplit(self.single_s / plan.step_s, "pipeline", plan.micro_batches, shares)
