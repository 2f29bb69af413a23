"""Run a plan and measure it beside plain PyTorch: predicted against measured, numbers against numbers."""

import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.devices.allocator import reserve_heap
from dlplacer.devices.base import Device
from dlplacer.errors import InputError
from dlplacer.fidelity.eager import EagerStep
from dlplacer.fidelity.medians import measured_medians
from dlplacer.fidelity.numerics import compare_once
from dlplacer.fidelity.recording import measured_plan, median_op_times, median_recording, record_steps
from dlplacer.fidelity.report import Beside, RunReport, device_uses, worst_offenders
from dlplacer.frontend.job import Job
from dlplacer.graph import OpGraph
from dlplacer.plan import Plan
from dlplacer.profile.dispatch_time import dispatch_time_s
from dlplacer.profile.link_times import measured_topology
from dlplacer.profile.op_times import measured_types, profile_ops, with_measured_times
from dlplacer.runtime.apply import apply
from dlplacer.runtime.placed import PlacedModule
from dlplacer.simulate import replay_plan

_RECORDED = 5


@dataclass(frozen=True)
class Run:
    """A report, the plan as predicted under measured costs, and a recorded step of median length as a plan."""

    report: RunReport
    predicted: Plan
    measured: Plan


def run(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    steps: int = 10,
    warmup: int = 3,
    beside: Mapping[str, Plan] | None = None,
) -> Run:
    """Run a plan on devices of this machine and compare it with its prediction and with plain PyTorch.

    Links are always timed. Ops are profiled first if the plan's times were not measured on these device types; the plan
    is then replayed with the measured times.

    Parameters
    ----------
    beside
        Name → another plan of the same job, with measured times, on devices of the same names; its steps take turns
        with those of the plan.

    Raises
    ------
    InputError
        If there are no steps to time.
    As `dlplacer.apply` and `PlacedModule.step` do.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"a run of {steps} steps after {warmup} cannot be timed; give at least 1 and 0")
    reference = copy.deepcopy(job.module)
    with ExitStack() as stack:
        others = {}
        for name, other in (beside or {}).items():
            copied = replace(job, module=copy.deepcopy(reference))
            others[name] = _Other(copied, stack.enter_context(closing(apply(copied, other, devices))))
        placed = stack.enter_context(closing(apply(job, plan, devices)))
        return _measure(job, placed.plan, placed, reference, steps, warmup, others)


@dataclass(frozen=True)
class _Other:
    """Another plan, placed, with its own copy of the job's module."""

    job: Job
    placed: PlacedModule

    def step(self) -> torch.Tensor:
        self.placed.zero_grad(set_to_none=True)
        return _planned_step(self.job, self.placed)

    def error(self, reference: nn.Module, device: Device) -> float:
        """Largest difference to plain PyTorch after one step each."""
        eager = EagerStep(self.job, copy.deepcopy(reference), device.torch_device)

        def eager_step(context: AbstractContextManager[object]) -> torch.Tensor:
            with context:
                return eager()

        return compare_once(self.placed, eager.module, self.step, eager_step, self.job.update is not None)[0]

    def beside(self, measured_s: float, baseline_s: float, error: float) -> Beside:
        plan, devices = self.placed.plan, list(self.placed.devices.values())
        predicted_s = _predicted(plan, plan.graph, devices, 0.0).makespan_s
        return Beside(
            predicted_s, measured_s, baseline_s / measured_s, abs(predicted_s - measured_s) / measured_s, error
        )


def _measure(
    job: Job,
    plan: Plan,
    placed: PlacedModule,
    reference: nn.Module,
    steps: int,
    warmup: int,
    others: Mapping[str, _Other],
) -> Run:
    opened = list(placed.devices.values())
    on_cores = all(device.torch_device.type == "cpu" for device in opened)
    if on_cores:
        reserve_heap((1 + len(others)) * sum(op.footprint_bytes for op in plan.graph.ops))
    must_profile = not set(measured_types(plan.graph)).issuperset(device.type for device in opened)
    graph = with_measured_times(plan.graph, profile_ops(job, placed.captured, opened)) if must_profile else plan.graph
    dispatch_s = _dispatch_s(job, placed, graph, opened)
    predicted = _predicted(plan, graph, opened, dispatch_s)
    eager = EagerStep(job, reference, opened[0].torch_device)

    def planned_step() -> torch.Tensor:
        placed.zero_grad(set_to_none=True)
        return _planned_step(job, placed)

    def eager_step(context: AbstractContextManager[object]) -> torch.Tensor:
        def step() -> torch.Tensor:
            with context:
                loss = eager()
            opened[0].synchronize()
            return loss

        result: torch.Tensor = opened[0].submit(step).result()
        return result

    errors = {name: other.error(reference, opened[0]) for name, other in others.items()}
    error, draws = compare_once(placed, reference, planned_step, eager_step, job.update is not None)
    variants = {"baseline": lambda: eager_step(nullcontext()), "placed": planned_step}
    if on_cores:
        variants["all cores"] = lambda: _on_all_cores(eager)
    medians = measured_medians({**variants, **{name: other.step for name, other in others.items()}}, steps, warmup)
    recordings = record_steps(placed, planned_step, min(steps, _RECORDED))
    measured = measured_plan(predicted, median_recording(recordings))
    serial_s = sum(op.time_on(opened[0].type) or 0.0 for op in graph.ops)
    predicted_s, measured_s = predicted.makespan_s, medians["placed"]
    report = RunReport(
        baseline_s=medians["baseline"],
        eager_all_cores_s=medians.get("all cores"),
        predicted_s=predicted_s,
        measured_s=measured_s,
        predicted_speedup=serial_s / predicted_s,
        measured_speedup=medians["baseline"] / measured_s,
        prediction_error=abs(predicted_s - measured_s) / measured_s,
        max_abs_error=error,
        draws=draws,
        step="joint",
        plan_makespan_s=plan.makespan_s,
        profiled=must_profile,
        steps=steps,
        devices=tuple(device.name for device in opened),
        dispatch_s=dispatch_s,
        use=device_uses(predicted, measured),
        offenders=worst_offenders(predicted, median_op_times(recordings)),
        beside={name: other.beside(medians[name], medians["baseline"], errors[name]) for name, other in others.items()},
    )
    return Run(report, predicted, measured)


def _predicted(plan: Plan, graph: OpGraph, devices: Sequence[Device], dispatch_s: float) -> Plan:
    """The plan under measured costs. What runs is the joint program, whatever step the plan was made for."""
    joint = replace(plan, options=replace(plan.options, step="joint"))
    return replay_plan(joint, graph, measured_topology(devices), dispatch_s)


def _dispatch_s(job: Job, placed: PlacedModule, graph: OpGraph, devices: Sequence[Device]) -> float:
    """Of the first device that is fed by the process; cores are not."""
    for device in devices:
        if device.torch_device.type != "cpu":
            durations_s = {op.id: op.time_on(device.type) or 0.0 for op in graph.ops}
            return dispatch_time_s(job, placed.captured, device, durations_s)
    return 0.0


def _planned_step(job: Job, placed: PlacedModule) -> torch.Tensor:
    if job.mode == "infer":
        outputs: torch.Tensor = pytree.tree_leaves(placed(*job.args, **job.kwargs))[0]
        return outputs
    return placed.step(*job.args, *job.targets, **job.kwargs)


def _on_all_cores(step: EagerStep) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        return step()
    finally:
        torch.set_num_threads(before)
