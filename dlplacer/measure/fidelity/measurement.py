"""A placed job measured: its numbers, its step times with those of its prediction, and recorded steps."""

import time
from collections.abc import Callable, Mapping
from statistics import fmean

from torch import nn

from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.measure.fidelity.medians import measured_medians
from dlplacer.measure.fidelity.numerics import compare_with_eager
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.measure.fidelity.prediction import Predictor
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.measure.fidelity.recording import mean_op_times, measured_plan, median_recording, record_steps
from dlplacer.measure.fidelity.run_report import Figures, Run, RunReport, device_uses, worst_offenders
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.distributed.collective_ops import COLLECTIVE

StepReport = Callable[[str, float | None], None]
"""Hears between steps what is done, and which share of all steps has been taken, where that is known."""

_MAIN = "placed"
_RECORDED = 5


def silent(what: str, share: float | None) -> None:
    """A `StepReport` to nobody."""


def measure(
    main: PlacedJob,
    others: Mapping[str, PlacedJob],
    reference: nn.Module,
    group: OneProcess,
    steps: int,
    warmup: int,
    on_progress: StepReport = silent,
) -> Run:
    """Compare the numbers of a step, time steps and predict them, and record some; the same on every process.

    Parameters
    ----------
    others
        Name → another plan of the job, with a copy of the module of its own; its steps alternate with those of `main`.
    reference
        A copy of the job's module as it was before the job was placed; plain PyTorch trains it.
    """
    candidates = {_MAIN: main, **others}
    device = next(iter(main.devices.values()))
    if in_host_memory(main.devices.values()):
        reserve_heap(len(candidates) * sum(op.footprint_bytes for op in main.placed.plan.graph.ops))
    predictors = {name: Predictor(placed, reference, group) for name, placed in candidates.items()}
    on_progress("numbers against plain PyTorch", None)
    differences = {name: compare_with_eager(placed, reference, device, group) for name, placed in candidates.items()}
    eager = EagerStep([main.job], reference, device)
    medians = _medians(candidates, predictors, eager, group, steps, warmup, on_progress)
    predictions = {name: predictor.predict(steps) for name, predictor in predictors.items()}
    recordings = record_steps(main.placed, main.step, min(steps, _RECORDED), group)

    prediction, line, ops = predictions[_MAIN], group.all_reduce, main.placed.plan.graph.ops
    shown = group.all_replicas(prediction.plan)
    measured = measured_plan(shown, median_recording(recordings))
    serial_s, baseline_s = group.replicas * prediction.serial_s, group.replicas * medians["baseline"]

    all_figures = {
        name: Figures(
            predicted_s=predictions[name].step_s,
            measured_s=medians[name],
            predicted_speedup=serial_s / predictions[name].step_s,
            measured_speedup=baseline_s / medians[name],
            prediction_error=abs(predictions[name].step_s - medians[name]) / medians[name],
            max_abs_error=differences[name].max_abs_error,
            plan_makespan_s=placed.placed.plan.makespan_s,
        )
        for name, placed in candidates.items()
    }
    report = RunReport(
        **vars(all_figures.pop(_MAIN)),
        baseline_s=medians["baseline"],
        eager_all_cores_s=medians.get("all cores"),
        draws=differences[_MAIN].draws,
        steps=steps,
        devices=group.devices,
        host_s=prediction.host_s,
        dispatch_s=prediction.dispatch_s,
        use=device_uses(shown, measured),
        offenders=worst_offenders(prediction.typical, mean_op_times(recordings, group.names, [op.id for op in ops])),
        beside=all_figures,
        over_ranks=line is not None,
        replicas=group.replicas,
        ranks=group.count,
        full_batch_error=differences[_MAIN].full_batch_error,
        all_reduce_latency_s=0.0 if line is None else line.latency_s,
        all_reduce_s_per_byte=0.0 if line is None else line.s_per_byte,
        buckets=sum(op.kind == COLLECTIVE for op in ops),
    )
    return Run(report, shown, measured)


def _medians(
    candidates: Mapping[str, PlacedJob],
    predictors: Mapping[str, Predictor],
    eager: EagerStep,
    group: OneProcess,
    steps: int,
    warmup: int,
    on_progress: StepReport,
) -> dict[str, float]:
    """Seconds of a step of plain PyTorch (``baseline``) and of every candidate, alternating with those that predict."""
    baseline = eager.step
    variants: dict[str, Callable[[], object]] = {"baseline": baseline}
    variants |= {name: placed.step for name, placed in candidates.items()}
    if group.all_reduce is None and in_host_memory(candidates[_MAIN].devices.values()):
        variants["all cores"] = eager.step_on_all_cores
    variants |= {f"predicted {name}": predictor.step for name, predictor in predictors.items()}
    untimed = {f"predicted {name}": predictor.untimed_step for name, predictor in predictors.items()}

    def timed(step: Callable[[], object]) -> float:
        """The baseline is the mean of all processes, any other step as long as on the slowest."""
        group.gathered(None)
        begin = time.perf_counter()
        step()
        everyone = group.gathered(time.perf_counter() - begin)
        return fmean(everyone) if step is baseline else float(max(everyone))

    def told(number: int) -> None:
        on_progress("warming up" if number < 0 else f"step {number + 1} of {steps}", max(0.0, number / steps) or None)

    return measured_medians(variants, steps, warmup, timed, untimed, told)
