"""A placed job measured: its numbers, its step times with those of its prediction, and recorded steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from torch import nn

from dlplacer.core.plan import Plan
from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.measure.fidelity.alternation import alternated_times
from dlplacer.measure.fidelity.conclusion import RunOutcome, conclusion
from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.measure.fidelity.loss import StepSeconds, loss_of
from dlplacer.measure.fidelity.numerics import Differences, compare_with_eager
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.measure.fidelity.prediction import Prediction, Predictor, used_devices
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.measure.fidelity.recording import mean_op_times, measured_plan, median_recording, record_steps
from dlplacer.measure.fidelity.run_report import Figures, Run, RunReport, device_uses, worst_offenders
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.distributed.collective_ops import COLLECTIVE
from dlplacer.runtime.profile.statistic import quartiles

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
    differences, times, predictions = _differences_and_times(
        candidates, reference, device, group, steps, warmup, on_progress
    )
    recordings = record_steps(main.placed, main.step, min(steps, _RECORDED), group)

    prediction, line, ops = predictions[_MAIN], group.all_reduce, main.placed.plan.graph.ops
    shown = group.all_replicas(prediction.plan)
    recording = median_recording(recordings)
    measured = measured_plan(shown, recording)
    baseline, all_cores = times["baseline"], times.get("all cores")
    all_figures = {
        name: figures_of(
            predictions[name],
            times[name],
            baseline,
            group.replicas,
            differences[name].max_abs_error,
            placed.placed.plan,
        )
        for name, placed in candidates.items()
    }
    report = RunReport(
        **vars(all_figures.pop(_MAIN)),
        baseline_s=trimmed_mean(baseline),
        baseline_quartiles_s=quartiles(baseline),
        noise=spread_of(baseline),
        eager_all_cores_s=None if all_cores is None else trimmed_mean(all_cores),
        eager_all_cores_quartiles_s=None if all_cores is None else quartiles(all_cores),
        draws=differences[_MAIN].draws,
        steps=len(baseline),
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
    seconds = StepSeconds(
        measured_s=report.measured_s,
        recorded_s=recording.wall_s,
        baseline_s=report.baseline_s,
        one_device_s=trimmed_mean(prediction.one_device_s) - prediction.host_s,
    )
    return with_conclusion(Run(report, shown, measured), seconds, spread_of(times[_MAIN]))


def spread_of(times: Sequence[float]) -> float:
    """Third less first quartile of a step's times, ÷ what lies between them on average."""
    low, high = quartiles(times)
    return (high - low) / trimmed_mean(times)


def with_conclusion(run: Run, seconds: StepSeconds, plan_noise: float = 0.0) -> Run:
    """The run with what its figures and its recorded step say."""
    report = run.report
    used = used_devices(run.predicted)
    loss = loss_of(run.predicted, run.measured, used, seconds, report.replicas)
    working = sum(entry.end_s > entry.start_s for entry in run.predicted.ops) / report.replicas
    outcome = RunOutcome(
        measured_s=report.measured_s,
        baseline_s=report.baseline_s,
        eager_all_cores_s=report.eager_all_cores_s,
        noise=report.noise or 0.0,
        devices=len(used),
        op_s=seconds.one_device_s / max(1, working),
        loss=loss,
        replicas=report.replicas,
        all_cores=len(usable_cores()),
        plan_noise=plan_noise,
    )
    return replace(run, report=replace(report, loss=loss, conclusion=conclusion(outcome)))


def figures_of(
    prediction: Prediction,
    measured: Sequence[float],
    baseline: Sequence[float],
    replicas: int,
    max_abs_error: float,
    plan: Plan,
) -> Figures:
    """The figures of one plan, from the seconds of its steps and of those of plain PyTorch in the same rounds."""
    predicted_s = prediction.step_s
    measured_s, baseline_s = trimmed_mean(measured), trimmed_mean(baseline)
    runtime = [ours / theirs for ours, theirs in zip(prediction.one_device_s, baseline, strict=True)]
    contention = prediction.contention or [1.0]
    return Figures(
        predicted_s=predicted_s,
        measured_s=measured_s,
        predicted_speedup=replicas * baseline_s / predicted_s,
        measured_speedup=replicas * baseline_s / measured_s,
        prediction_error=abs(predicted_s - measured_s) / measured_s,
        max_abs_error=max_abs_error,
        plan_makespan_s=plan.makespan_s,
        predicted_quartiles_s=quartiles(prediction.steps_s),
        measured_quartiles_s=quartiles(measured),
        runtime_factor=trimmed_mean(runtime),
        runtime_factor_quartiles=quartiles(runtime),
        contention_factor=trimmed_mean(contention),
        contention_factor_quartiles=quartiles(contention),
    )


def _differences_and_times(
    candidates: Mapping[str, PlacedJob],
    reference: nn.Module,
    device: RuntimeDevice,
    group: OneProcess,
    steps: int,
    warmup: int,
    on_progress: StepReport,
) -> tuple[dict[str, Differences], dict[str, list[float]], dict[str, Prediction]]:
    """How candidates differ from plain PyTorch, seconds as of `_times`, and predictions from the same rounds."""
    predictors = {name: Predictor(placed, reference, group) for name, placed in candidates.items()}
    on_progress("numbers against plain PyTorch", None)
    differences = {name: compare_with_eager(placed, reference, device, group) for name, placed in candidates.items()}
    eager = EagerStep([candidates[_MAIN].job], reference, device)
    times = _times(candidates, predictors, eager, group, steps, warmup, on_progress)
    return differences, times, {name: predictor.predict(len(times[name])) for name, predictor in predictors.items()}


def _times(
    candidates: Mapping[str, PlacedJob],
    predictors: Mapping[str, Predictor],
    eager: EagerStep,
    group: OneProcess,
    steps: int,
    warmup: int,
    on_progress: StepReport,
) -> dict[str, list[float]]:
    """Seconds of steps of plain PyTorch (``baseline``) and of every candidate, alternating with those that predict."""
    baseline = eager.step
    variants: dict[str, Callable[[], object]] = {}
    if group.all_reduce is None and in_host_memory(candidates[_MAIN].devices.values()):
        variants["all cores"] = eager.step_on_all_cores
    # What is compared comes one after the other: a machine's speed may change several times in a round.
    variants["baseline"] = baseline
    variants |= {name: placed.step for name, placed in candidates.items()}
    untimed = {}
    for name, predictor in predictors.items():
        for kind, (kept, other) in predictor.steps().items():
            variants[f"{name}, {kind}"], untimed[f"{name}, {kind}"] = kept, other

    def timed(step: Callable[[], object]) -> float:
        """The baseline is the mean of all processes, any other step as long as on the slowest."""
        group.gathered(None)
        begin = time.perf_counter()
        step()
        everyone = group.gathered(time.perf_counter() - begin)
        return fmean(everyone) if step is baseline else float(max(everyone))

    def told(number: int, total: int) -> None:
        if number < 0:
            on_progress("warming up", None)
        else:
            most = "" if total == steps else "at most "
            on_progress(f"step {number + 1} of {most}{total}", number / total)

    return alternated_times(variants, steps, warmup, timed, untimed, told)
