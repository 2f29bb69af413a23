"""Run a plan, and compare its times with the prediction and its numbers with plain PyTorch."""

import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.files.formats import plan_to_dict, read_plan
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.micro_batches import part_of
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.measure.prediction import SHORT_S, Prediction, Predictor, used_devices
from dlplacer.measure.run_report import Run, RunReport, conclusion, losses_of
from dlplacer.measure.steps import (
    BASELINE,
    Baselines,
    OneProcess,
    PlacedJob,
    Recording,
    SeveralProcesses,
    home_of_all,
    made_baselines,
    measured_plan,
    median_recording,
)
from dlplacer.planning.pipeline.micro_batch_names import BatchCut
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S
from dlplacer.runtime.distributed.measured_network import measured_all_reduce
from dlplacer.runtime.distributed.rank_module import apply_in_group, opened_group, require_replicas, settings_of
from dlplacer.runtime.distributed.replicate import COLLECTIVE, DEFAULT_BUCKET_BYTES, replicated_plan
from dlplacer.runtime.placed.apply import apply, capture_as_planned, of_captured_ops, require_captured
from dlplacer.runtime.profile.op_times import quartiles

LIMIT_S = 60.0
"""Time limit for all timed steps, unless their number is given."""
_LEAST, _MOST = 5, 40
_SURE = 0.03
# The first two to six steps take up to 2.5 times as long, while heaps fill; some models never settle within 3 %.
_SETTLED, _MOST_WARMUP, _MOST_WARMUP_S = 0.03, 12, 10.0
# After a step of another kind, a step of 10 ms takes up to 25 % longer, the next one up to 10 %, the fourth no longer.
_UNTIMED_S, _MOST_UNTIMED = 0.1, 4


def alternated_times(
    steps: Mapping[str, Callable[[], object]],
    compared: Collection[str],
    count: int | None,
    warmup: int,
    timed: Callable[[Callable[[], object]], float],
    on_round: Callable[[int, float], None] = lambda number, share: None,
) -> dict[str, list[float]]:
    """Name → seconds of the named step in every round; every other round runs the steps in reverse order.

    Each compared step first warms up: `warmup` times, at least twice, then until two successive times differ by at most
    3 %, or 12 steps or 10 s are over. Untimed steps precede each short compared step, because caches hold other data.
    Without a `count`, there are 5 to 40 rounds, until all compared medians are certain to about 3 %, judged by their
    quartiles; no round begins that would end after a minute. Steps that are not `compared` only take turns.

    `timed` runs a step and returns its seconds, which alone decide the number of rounds: processes with equal seconds
    run equally many rounds. `on_round` gets the number of each round, and the share of time or rounds that is over.
    """
    ahead = {name: _warm_up(step, warmup, timed) for name, step in steps.items() if name in compared}
    times: dict[str, list[float]] = {name: [] for name in steps}
    number, spent_s = 0, 0.0
    least, most = (_LEAST, _MOST) if count is None else (count, count)

    def is_sure(of_step: Sequence[float]) -> bool:
        return bool(spread(of_step) <= _SURE * len(of_step) ** 0.5)

    while number < least or (number < most and not all(is_sure(times[name]) for name in compared)):
        if count is None and number and spent_s * (1 + 1 / number) > LIMIT_S:
            break
        on_round(number, max(number / most, 0.0 if count else spent_s / LIMIT_S))
        for name in list(steps)[:: 1 if number % 2 == 0 else -1]:
            for _ in range(ahead.get(name, 0)):
                spent_s += timed(steps[name])
            times[name].append(timed(steps[name]))
            spent_s += times[name][-1]
        number += 1
    return times


def spread(times: Sequence[float]) -> float:
    """Interquartile range of a step's times ÷ their median."""
    low, high = quartiles(times)
    return (high - low) / median(times)


def _warm_up(step: Callable[[], object], least: int, timed: Callable[[Callable[[], object]], float]) -> int:
    """Run the step until its time is steady; returns the number of untimed steps before each timed one."""
    times = [timed(step), timed(step)]
    while len(times) < least or (len(times) < _MOST_WARMUP and sum(times) < _MOST_WARMUP_S):
        if len(times) >= least and abs(times[-1] - times[-2]) <= _SETTLED * times[-2]:
            break
        times.append(timed(step))
    now = times[-1]
    return 0 if now >= SHORT_S else max(1, min(_MOST_UNTIMED, int(_UNTIMED_S / max(now, 1e-9))))


StepReport = Callable[[str, float | None], None]
"""Called between steps with a description of the work, and the share of all steps that are done, if known."""

Times = Mapping[str, Sequence[float]]
"""Name of a step → its seconds in each round."""

_MAIN = "placed"
_RECORDED = 5


def run(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    steps: int | None = None,
    warmup: int = 3,
    on_progress: StepReport = lambda what, share: None,
    segments: str = "eager",
    compiled: bool | None = None,
) -> Run:
    """Run a plan on devices of this machine, and compare it with its prediction and with plain PyTorch.

    The prediction is made anew: links are timed, and between steps of the placed module every device runs its own ops
    (`Predictor`). `RunReport.plan_makespan_s` is the plan's own makespan, under the costs used for planning. A device
    holds only tensors that the plan puts there. For plain PyTorch, one device also holds the whole model, if it fits.

    Parameters
    ----------
    steps, warmup
        Number of timed steps, by default 5 to 40 for a stable median within a minute; least number of warm-up steps.
    compiled
        Whether to time ``torch.compile`` on one device too; by default, only if segments are compiled or captured.
    segments
        The option of `dlplacer.apply`.

    Raises the errors of `dlplacer.apply` and `PlacedModule.step`.
    """
    compiled = segments != "eager" if compiled is None else compiled
    reference = copy.deepcopy(job.module) if home_of_all(plan) else job.module
    with closing(apply(job, plan, devices, segments=segments)) as module:
        main = PlacedJob(module, [job])
        return measure(main, reference, OneProcess(main.devices), steps, warmup, on_progress, compiled)


def run_over_ranks(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    steps: int | None = None,
    warmup: int = 3,
    on_progress: StepReport = lambda what, share: None,
    *,
    replicas: int = 1,
    cut: bool = True,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    segments: str = "eager",
) -> Run:
    """Like `run`, for a plan over ranks; every process of the group must call it, and all return the same run.

    With `cut`, the job has the whole batch, of which every replica runs an equal part; else every replica runs the
    whole job. Raises InputError if the job does not train, and the errors of
    `dlplacer.runtime.distributed.apply_ranks` and `PlacedModule.step`.
    """
    if job.mode != "train":
        raise InputError("a plan over several processes is timed in training; capture with mode='train'")
    require_captured(plan)
    if "collectives" in (plan.graph.capture or {}):
        require_replicas(plan, replicas)
    with opened_group(plan, devices, replicas, timeout_s) as (group, opened):
        group.require_same(settings_of(job, plan, group) | {"steps": steps, "warm-up": warmup, "cut": cut})
        parts = [part_of(job, number, BatchCut(replicas)) if cut else job for number in range(replicas)]
        line = measured_all_reduce(group)
        made = None if group.rank else _replicated(parts[0], plan, replicas, bucket_bytes, line)
        planned = read_plan(group.gathered(made and plan_to_dict(made))[0], "the plan of rank 0")
        reference = copy.deepcopy(job.module) if home_of_all(planned) else job.module
        with closing(apply_in_group(parts[group.replica], planned, group, opened, segments)) as module:
            processes = SeveralProcesses(group, opened, line)
            placed = PlacedJob(module, parts, group.replica)
            return measure(placed, reference, processes, steps, warmup, on_progress)


def _replicated(job: Job, plan: Plan, replicas: int, bucket_bytes: int, line: AlphaBeta) -> Plan:
    """The plan for the joint step, with collectives for the gradients if there are several replicas."""
    plan = replace(plan, options=replace(plan.options, step="joint"))
    if "collectives" in (plan.graph.capture or {}):
        return plan
    plan = of_captured_ops(plan, capture_as_planned(job, plan).graph)
    return plan if replicas == 1 else replicated_plan(plan, replicas, line, bucket_bytes)


def measure(
    main: PlacedJob,
    reference: nn.Module,
    group: OneProcess,
    steps: int | None,
    warmup: int,
    on_progress: StepReport,
    compiled: bool = False,
) -> Run:
    """A run's result, equal on all processes: numbers compared with plain PyTorch, times, records and prediction.

    `reference`: a copy of the job's module from before the job was placed; plain PyTorch trains it.
    """
    on_progress("numbers against plain PyTorch", None)
    baselines = made_baselines(main, reference, group, compiled)
    predictor = Predictor(main, group)
    predictor.warm_up()
    # Compared steps are neighbours in a round, because a machine's speed may change several times per round.
    compared = {**baselines.steps, _MAIN: main.step}

    def timed(step: Callable[[], object]) -> float:
        """Seconds of a step: the mean over all processes for the baseline, else the slowest process's."""
        group.gathered(None)
        begin = time.perf_counter()
        step()
        everyone = group.gathered(time.perf_counter() - begin)
        return fmean(everyone) if step is baselines.steps.get(BASELINE) else float(max(everyone))

    def told(number: int, share: float) -> None:
        on_progress(f"step {number + 1}", share)

    on_progress("warming up", None)
    times = alternated_times({**compared, "ops": predictor.sample}, compared, steps, warmup, timed, told)
    on_progress("recording steps", None)
    recordings = main.recorded(min(len(times[_MAIN]), _RECORDED), group)
    prediction = predictor.predict(median(each.wall_s - each.length_s for each in recordings))
    return _run(main, prediction, recordings, times, baselines, group)


def _run(
    main: PlacedJob,
    prediction: Prediction,
    recordings: Sequence[Recording],
    times: Times,
    baselines: Baselines,
    group: OneProcess,
) -> Run:
    predicted, measured = prediction.plan, measured_plan(prediction.plan, median_recording(recordings))
    line, predicted_s = group.all_reduce or AlphaBeta(0.0, 0.0), predicted.makespan_s + prediction.host_s
    measured_s = median(times[_MAIN])
    rivals: dict[str, Any] = {f"{name}_s": median(times[name]) for name in baselines.steps}
    rivals |= {f"{name}_quartiles_s": quartiles(times[name]) for name in baselines.steps}
    devices = group.replicas * len(used_devices(predicted))
    if baselines.compared is not None:
        rivals["max_abs_error"], rivals["largest_number"] = baselines.compared
    if BASELINE in times:
        baseline_s = rivals["baseline_s"]
        spent = prediction.alone_s, prediction.busy_s, predicted.makespan_s, prediction.host_s
        rivals |= {
            "predicted_speedup": group.replicas * baseline_s / predicted_s,
            "measured_speedup": group.replicas * baseline_s / measured_s,
            "runtime_factor": prediction.alone_s / baseline_s,
            "noise": spread(times[BASELINE]),
            "losses": losses_of(baseline_s, *spent, group.replicas / devices),
        }
    report = RunReport(
        predicted_s=predicted_s,
        measured_s=measured_s,
        plan_makespan_s=main.placed.plan.makespan_s,
        prediction_error=abs(predicted_s - measured_s) / measured_s,
        measured_quartiles_s=quartiles(times[_MAIN]),
        contention_factor=prediction.contention,
        devices=group.devices,
        steps=len(times[_MAIN]),
        segments=main.placed.segments,
        **rivals,
        left_out=tuple(baselines.left_out),
        host_s=prediction.host_s,
        dispatch_s=prediction.dispatch_s,
        replicas=group.replicas,
        ranks=len(group.replica_of),
        all_reduce_latency_s=line.latency_s,
        all_reduce_s_per_byte=line.s_per_byte,
        buckets=sum(op.kind == COLLECTIVE for op in predicted.graph.ops),
    )
    return Run(replace(report, conclusion=conclusion(report, devices)), predicted, measured)
