"""A pipeline as a plan: every copy of an op is on the device of its stage, in the order of the schedule."""

import time
from collections.abc import Sequence
from itertools import product

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError, InternalError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.assemble import plan_of, provenance_of
from dlplacer.planning.pipeline.micro_batch_names import copy_id
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.bounds import critical_path, whole_area
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Outcome

_ENDS = ("gradient", "mutation")
Place = tuple[int, int]
"""Position of an action in its rank's order, and 1 for ops that serve only the stage's own weights, else 0."""


def placed_pipeline(pipeline: PipelinePlan, graph: OpGraph, topology: Topology) -> Plan:
    """The plan of a pipeline, with its times from a replay and its bound from the critical path and the area.

    `graph`: The step that the pipeline was planned for, rewritten into its micro-batches.

    Raises MismatchError if a micro-batch has other ops than the planned batch, and InfeasibleError if a device's memory
    cannot hold its stages' tensors. A pipeline that fits may fail here, because a plan counts each tensor by itself.
    """
    began = time.monotonic()
    problem = build_problem(with_times(graph, topology), topology, Options(step="joint"))
    expansion = _Expansion(pipeline, problem.graph)
    index = topology.device_index
    device = [index[pipeline.stages[expansion.stage[op.id]].device] for op in problem.graph.ops]
    ops, transfers = replay(problem, device, [problem.graph.index[name] for name in expansion.order])
    instance = build_instance(problem)
    bound = Outcome(None, max(critical_path(instance), whole_area(instance)))
    provenance = provenance_of(problem, micro_batches=pipeline.micro_batches)
    method = f"pipeline/{pipeline.schedule}"
    plan = plan_of(problem, ops, transfers, bound, method, time.monotonic() - began, provenance)
    broken = violations(plan)
    if any(violation.rule == "eq. 13 memory" for violation in broken):
        raise InfeasibleError(f"{broken[0]}; use more stages, more micro-batches, or the schedule 1f1b")
    if broken:
        raise InternalError("the pipeline's plan breaks the rules: " + "; ".join(map(str, broken[:3])))
    return plan


class _Expansion:
    """The stage and the place in the order of every op of the micro-batches.

    An op that is not a copy (an input, the sum of two gradients) is placed with its inputs or with its first reader.
    """

    def __init__(self, pipeline: PipelinePlan, graph: OpGraph) -> None:
        self.pipeline, self.graph = pipeline, graph
        _require_same_ops(pipeline, graph)
        self.stage: dict[str, int] = {}
        self.place: dict[str, Place] = {}
        self._place_known()
        names = graph.topological_order
        for name in names:
            if name not in self.stage:
                self._place_beside(name, [edge.source for edge in graph.edges_into[name]], first=False)
        for name in reversed(names):
            if name not in self.stage:
                self._place_beside(name, [edge.target for edge in graph.edges_from[name]], first=True)

    @property
    def order(self) -> list[str]:
        """All ops by action; in an action, ops that other stages wait for come first; ties are in topological order."""
        rank = {name: position for position, name in enumerate(self.graph.topological_order)}
        return sorted(self.graph.index, key=lambda name: (self.place[name], rank[name]))

    def _place_known(self) -> None:
        """Place the copies of the pipeline's ops, and the ops that all micro-batches share."""
        end, index = (max(map(len, self.pipeline.order)), 0), self.graph.index
        # (stage, kind, micro-batch) → position among the rank's actions; a whole backward action is both I and W.
        actions = {
            (action.stage, kind, action.micro_batch): position
            for in_order in self.pipeline.order
            for position, action in enumerate(in_order)
            for kind in ("IW" if action.kind == "B" else action.kind)
        }
        for number, stage in enumerate(self.pipeline.stages):
            for kind, names in zip("FIW", (stage.ops, *stage.later[:2]), strict=True):
                for name, micro_batch in product(names, range(self.pipeline.micro_batches)):
                    copied = copy_id(name, micro_batch) if self.pipeline.micro_batches > 1 else name
                    if copied in index:
                        self.stage[copied] = number
                        self.place[copied] = actions[number, kind, micro_batch], int(kind == "W")
            for name in (name for names in (stage.ops, *stage.later) for name in names if name in index):
                op = self.graph.op(name)
                ends = op.kind in _ENDS or op.phase == "optimizer"
                self.stage[name], self.place[name] = number, end if ends else self.place.get(name, (-1, 0))

    def _place_beside(self, name: str, others: Sequence[str], first: bool) -> None:
        known = [other for other in others if other in self.stage]
        if not known and not first:
            return
        backward = self.graph.op(name).phase == "backward"
        stages = [self.stage[other] for other in known]
        stage = self.stage[name] = (min if first or backward else max)(stages, default=0)
        places = [self.place[other] for other in known if self.stage[other] == stage]
        self.place[name] = (min if first else max)(places, default=(-1, 0))


def _require_same_ops(pipeline: PipelinePlan, graph: OpGraph) -> None:
    """Raise MismatchError if ids differ: for a batch of one, torch leaves out copies, so an id may mean another op."""
    planned = dict.fromkeys(name for stage in pipeline.stages for names in (stage.ops, *stage.later) for name in names)
    made = {op.origin[0] if op.origin else op.id: op for op in graph.ops}
    other = [name for name in planned if name not in made]
    other += [name for name, op in made.items() if op.origin and name not in planned]
    if other:
        raise MismatchError(
            f"one of {pipeline.micro_batches} micro-batches has other ops than the whole batch, such as {other[0]!r}; "
            "use fewer micro-batches"
        )
