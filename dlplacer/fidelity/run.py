"""Run a plan and measure it beside plain PyTorch: predicted against measured, numbers against numbers."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from dlplacer.devices.allocator import reserve_heap
from dlplacer.errors import InputError
from dlplacer.fidelity.eager import EagerStep
from dlplacer.fidelity.medians import measured_medians
from dlplacer.frontend.job import Job
from dlplacer.plan import Plan
from dlplacer.profile.link_times import measured_topology
from dlplacer.profile.op_times import measured_types, profile_ops, with_measured_times
from dlplacer.runtime.apply import apply
from dlplacer.runtime.placed import PlacedModule
from dlplacer.simulate import replay_plan


@dataclass(frozen=True)
class RunReport:
    """What a run measured: medians in seconds per step.

    Attributes
    ----------
    baseline_s
        Eager PyTorch on one of the devices, under the same conditions.
    eager_all_cores_s
        Plain PyTorch with all cores of the host; None where the devices are not CPU cores.
    predicted_s, predicted_speedup
        Replay of the plan under measured costs; serial op times ÷ predicted.
    measured_s, measured_speedup
        The placed step; baseline ÷ measured.
    prediction_error
        |predicted − measured| ÷ measured.
    max_abs_error
        Largest difference of the loss and of any gradient against plain PyTorch; with an optimizer, of the loss and of
        any updated parameter. Where ops are random, as with dropout, it compares different draws.
    plan_makespan_s
        What the plan itself says.
    """

    baseline_s: float
    eager_all_cores_s: float | None
    predicted_s: float
    measured_s: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    step: str
    plan_makespan_s: float
    profiled: bool
    steps: int
    devices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """A report and the plan as predicted under measured costs."""

    report: RunReport
    predicted: Plan


def run(job: Job, plan: Plan, devices: Mapping[str, str] | Sequence[str], steps: int = 10, warmup: int = 3) -> Run:
    """Run a plan on devices of this machine and compare it with its prediction and with plain PyTorch.

    Links are always timed. Ops are profiled first if the plan's times were not measured on these device types; the plan
    is then replayed with the measured times.

    Raises
    ------
    InputError
        If there are no steps to time.
    As `dlplacer.apply` and `PlacedModule.step` do.
    """
    if steps < 1 or warmup < 0:
        raise InputError(f"a run of {steps} steps after {warmup} cannot be timed; give at least 1 and 0")
    reference = copy.deepcopy(job.module)
    placed = apply(job, plan, devices)
    try:
        return _measure(job, plan, placed, reference, steps, warmup)
    finally:
        placed.close()


def _measure(job: Job, plan: Plan, placed: PlacedModule, reference: nn.Module, steps: int, warmup: int) -> Run:
    opened = list(placed.devices.values())
    on_cores = all(device.torch_device.type == "cpu" for device in opened)
    if on_cores:
        reserve_heap(sum(op.footprint_bytes for op in plan.graph.ops))
    known = set(measured_types(plan.graph))
    must_profile = not known.issuperset(device.type for device in opened)
    graph = plan.graph
    if must_profile:
        graph = with_measured_times(graph, profile_ops(job, placed.captured, opened))
    predicted = replay_plan(plan, graph, measured_topology(opened))
    eager = EagerStep(job, reference, opened[0].torch_device)

    def planned_step() -> torch.Tensor:
        placed.zero_grad(set_to_none=True)
        return _planned_step(job, placed)

    def eager_on_one_device() -> torch.Tensor:
        def step() -> torch.Tensor:
            loss = eager()
            opened[0].synchronize()
            return loss

        result: torch.Tensor = opened[0].submit(step).result()
        return result

    error = _largest_difference(planned_step(), eager_on_one_device(), placed, reference, job.update is not None)
    variants = {"baseline": eager_on_one_device, "placed": planned_step}
    if on_cores:
        variants["all cores"] = lambda: _on_all_cores(eager)
    medians = measured_medians(variants, steps, warmup)
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
        step="joint",
        plan_makespan_s=plan.makespan_s,
        profiled=must_profile,
        steps=steps,
        devices=tuple(device.name for device in opened),
    )
    return Run(report, predicted)


def _planned_step(job: Job, placed: PlacedModule) -> torch.Tensor:
    if job.mode == "infer":
        from torch.utils import _pytree as pytree

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


def _largest_difference(
    ours: torch.Tensor, theirs: torch.Tensor, placed: nn.Module, plain: nn.Module, updated: bool
) -> float:
    """Of the loss and of gradients, or of the parameters where the step has updated them."""
    pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = [(ours, theirs)]
    for mine, other in zip(placed.parameters(), plain.parameters(), strict=True):
        pairs.append((mine.detach(), other.detach()) if updated else (mine.grad, other.grad))
    differences = [(a.cpu() - b.cpu()).abs().max() for a, b in pairs if a is not None and b is not None]
    return float(max(differences))
