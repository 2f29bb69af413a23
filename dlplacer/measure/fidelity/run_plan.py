"""Run a plan and measure it beside plain PyTorch: predicted against measured, numbers against numbers."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.eager import EagerOnDevice, EagerStep
from dlplacer.measure.fidelity.medians import measured_medians
from dlplacer.measure.fidelity.numerics import compare_once
from dlplacer.measure.fidelity.prediction import Prediction, Predictor
from dlplacer.measure.fidelity.recording import measured_plan, median_op_times, median_recording, record_steps
from dlplacer.measure.fidelity.run_report import Beside, RunReport, device_uses, worst_offenders
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.placed.apply import apply
from dlplacer.runtime.placed.placed_module import PlacedModule

_RECORDED = 5


@dataclass(frozen=True)
class Run:
    """A report, the plan as in the predicted step nearest to the median, and a recorded step of median length."""

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

    The prediction is made anew: links are timed, and in turn with the steps of the placed module every device runs
    whole steps by itself, whose op times the plan is replayed with (`Predictor`). `RunReport.plan_makespan_s` is what
    the plan itself promised, under the costs that it was made with.

    Parameters
    ----------
    beside
        Name → another plan of the same job, on devices of the same names; its steps take turns with those of the plan.

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

    def error(self, reference: nn.Module, device: RuntimeDevice) -> float:
        """Largest difference to plain PyTorch after one step each."""
        eager = EagerStep(self.job, copy.deepcopy(reference), device.torch_device)

        def eager_step(context: AbstractContextManager[object]) -> torch.Tensor:
            with context:
                return eager()

        return compare_once(self.placed, eager.module, self.step, eager_step, self.job.update is not None)[0]

    def beside(
        self, prediction: Prediction, measured_s: float, serial_s: float, baseline_s: float, error: float
    ) -> Beside:
        """The figures of its run; both speedups are over those of the plan that it ran beside."""
        return Beside(
            predicted_s=prediction.step_s,
            measured_s=measured_s,
            predicted_speedup=serial_s / prediction.step_s,
            measured_speedup=baseline_s / measured_s,
            prediction_error=abs(prediction.step_s - measured_s) / measured_s,
            max_abs_error=error,
            plan_makespan_s=self.placed.plan.makespan_s,
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
    if in_host_memory(opened):
        reserve_heap((1 + len(others)) * sum(op.footprint_bytes for op in plan.graph.ops))
    predictors = {"predicted": Predictor(job, plan, placed.captured, opened)}
    for name, other in others.items():
        predictors[f"predicted {name}"] = Predictor(other.job, other.placed.plan, other.placed.captured, opened)
    eager = EagerOnDevice(EagerStep(job, reference, opened[0].torch_device), opened[0])

    def planned_step() -> torch.Tensor:
        placed.zero_grad(set_to_none=True)
        return _planned_step(job, placed)

    errors = {name: other.error(reference, opened[0]) for name, other in others.items()}
    error, draws = compare_once(placed, reference, planned_step, eager.step, job.update is not None)
    variants: dict[str, Callable[[], object]] = {"baseline": eager.step, "placed": planned_step}
    if in_host_memory(opened):
        variants["all cores"] = eager.step_on_all_cores
    variants |= {name: other.step for name, other in others.items()}
    variants |= {name: predictor.step for name, predictor in predictors.items()}
    untimed = {name: predictor.untimed_step for name, predictor in predictors.items()}
    medians = measured_medians(variants, steps, warmup, before=untimed)
    predictions = {name: predictor.predict(steps) for name, predictor in predictors.items()}
    recordings = record_steps(placed, planned_step, min(steps, _RECORDED))
    prediction = predictions["predicted"]
    measured = measured_plan(prediction.plan, median_recording(recordings))
    baseline_s, measured_s = medians["baseline"], medians["placed"]
    report = RunReport(
        baseline_s=baseline_s,
        eager_all_cores_s=medians.get("all cores"),
        predicted_s=prediction.step_s,
        measured_s=measured_s,
        predicted_speedup=prediction.serial_s / prediction.step_s,
        measured_speedup=baseline_s / measured_s,
        prediction_error=abs(prediction.step_s - measured_s) / measured_s,
        max_abs_error=error,
        draws=draws,
        step="joint",
        plan_makespan_s=plan.makespan_s,
        steps=steps,
        devices=tuple(device.name for device in opened),
        host_s=prediction.host_s,
        dispatch_s=prediction.dispatch_s,
        use=device_uses(prediction.plan, measured),
        offenders=worst_offenders(prediction.typical, median_op_times(recordings)),
        beside={
            name: other.beside(
                predictions[f"predicted {name}"], medians[name], prediction.serial_s, baseline_s, errors[name]
            )
            for name, other in others.items()
        },
    )
    return Run(report, prediction.plan, measured)


def _planned_step(job: Job, placed: PlacedModule) -> torch.Tensor:
    if job.mode == "infer":
        outputs: torch.Tensor = pytree.tree_leaves(placed(*job.args, **job.kwargs))[0]
        return outputs
    return placed.step(*job.args, *job.targets, **job.kwargs)
