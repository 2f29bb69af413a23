"""Alternatives to op placement: a pipeline of micro-batches, or the batch shared by data-parallel devices."""

import time
from collections.abc import Iterator
from dataclasses import replace

from dlplacer.core.errors import DlplacerError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.gradient_exchange import exchanges
from dlplacer.planning.hybrid.step_times import OnMachine, Team, memory_rate
from dlplacer.planning.hybrid.step_workload import work_of
from dlplacer.planning.hybrid.worker_layout import WorkerLayout
from dlplacer.planning.hybrid.workers import ALONE
from dlplacer.planning.pipeline.hint import pipeline_hint
from dlplacer.planning.pipeline.micro_batch_names import batch_cut_of
from dlplacer.planning.pipeline.pipeline_workload import MicroBatchCosts, batch_of, mixing_warnings
from dlplacer.planning.what_if.answer import Answer

_UNCOMPRESSED = ("none",)


def strategies(plan: Plan) -> Iterator[Answer]:
    """A pipeline over all devices, and data parallelism over all; both for training steps on several devices.

    A step of micro-batches is a pipeline already, and its ops are not those of a batch that could be shared.
    """
    if len(plan.topology.devices) < 2 or not any(op.phase == "backward" for op in plan.graph.ops):
        return
    if batch_cut_of((plan.graph.capture or {}).get("rewrites", ())).count > 1:
        return
    yield _pipeline(plan)
    yield _data_parallel(plan)


def _pipeline(plan: Plan) -> Answer:
    text = "a pipeline of micro-batches"
    began = time.monotonic()
    found = pipeline_hint(plan.graph, plan.topology, plan.makespan_s)
    if found is None:
        return Answer("pipeline", text, "not tried", note="no split into stages was found in passing")
    note = "; ".join(
        (
            f"{found.schedule}, {found.micro_batches} micro-batches, found in {time.monotonic() - began:.1f} s; "
            "see dlplacer pipeline",
            *found.warnings,
        )
    )
    return Answer("pipeline", text, "estimated", found.step_s, _area_s(plan), note)


def _area_s(plan: Plan) -> float:
    """All work, on the fastest device for each op, shared evenly: micro-batches make it no less."""
    graph, kinds = plan.graph, plan.topology.device_types
    fastest = (min((t for kind in kinds if (t := op.time_on(kind)) is not None), default=0.0) for op in graph.ops)
    return sum(fastest) / len(plan.topology.devices)


def _data_parallel(plan: Plan) -> Answer:
    """Every device takes an equal part of the plan's batch through the whole model, and they average gradients."""
    count = len(plan.topology.devices)
    text = f"data parallelism: the batch in {count} parts, gradients averaged"
    reason = _why_not(plan, count)
    if reason:
        return Answer("data parallelism", text, "not tried", note=reason)
    try:
        works = [work_of(_part(plan.graph, plan.topology, kind, count), kind) for kind in plan.topology.device_types]
        work = max(works, key=lambda each: each.step_s)
        machine = OnMachine(WorkerLayout(plan.topology), exchanges(memory_rate(plan.topology), _UNCOMPRESSED))
        steps = list(machine.step_times(work, Team(count, 1, ALONE), (1,)))
        best = min((step for step in steps if not step.servers), key=lambda step: step.step_s)
    except (DlplacerError, ValueError) as error:
        return Answer("data parallelism", text, "not tried", note=str(error))
    exposed = f"{best.algorithm} all-reduce" if best.algorithm else "no gradients"
    note = f"{exposed}, {best.exposed_s / best.step_s:.0%} of the step exposed; see dlplacer hybrid"
    notes = "; ".join((note, *mixing_warnings(plan.graph, count)))
    return Answer("data parallelism", text, "estimated", best.step_s, work.step_s, notes)


def _part(graph: OpGraph, topology: Topology, kind: str, count: int) -> OpGraph:
    times = MicroBatchCosts(graph, topology).times(kind, count)
    return replace(graph, ops=tuple(replace(op, time_s=time_s) for op, time_s in zip(graph.ops, times, strict=True)))


def _why_not(plan: Plan, count: int) -> str:
    """Why the devices cannot share the batch; empty if nothing is known against it."""
    batch, kinds = batch_of(plan.graph), plan.topology.device_types
    if batch is not None and batch % count:
        return f"a batch of {batch} has no {count} equal parts"
    if any(op.time_on(kind) is None for op in plan.graph.ops for kind in kinds):
        return "some op cannot run on every type of device"
    # Weights, gradients and state are on every device; what else is alive is left out, so this is certain.
    held = sum(op.weight_bytes + op.gradient_bytes + op.state_bytes for op in plan.graph.ops)
    small = [d.id for d in plan.topology.devices if d.memory_bytes is not None and d.memory_bytes < held]
    return f"weights, gradients and state do not fit on {small[0]}" if small else ""
