"""Planning with splits: the best plans of a job on a machine without and with splits of its ops."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.result import Result
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.files.structure_hash import first_difference, structure_sha256
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.measure.splitting.choose_splits import (
    Evaluator,
    Prospect,
    SplitChoice,
    TracedStep,
    choose_splits,
    measured_choice,
    tables_of,
)
from dlplacer.planning.place import place
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.profile.op_times import measured_types, profile_ops, with_measured_times

# Without a profile a part is taken to cost 3 % beyond its share: between a free split and the 5 % at which, in
# simulation, splitting 36 ops of Inception-V3 still pays.
_UNMEASURED_OVERHEAD = 0.03
_SEARCH_SHARE = 0.4
_STEPS = 5
"""That are timed of each set of splits that is profiled."""


@dataclass(frozen=True, repr=False)
class SplitResult:
    """Plans of one step without splits and with them: the same where none shorten the step.

    `evaluated`: how many sets of splits were tried.
    """

    whole: Result
    split: Result
    splits: tuple[OpSplit, ...]
    evaluated: int

    def __repr__(self) -> str:
        whole_s, split_s = self.whole.plan.makespan_s, self.split.plan.makespan_s
        return (
            f"<SplitResult: {format_seconds(whole_s)} whole, {format_seconds(split_s)} with {len(self.splits)} ops "
            f"split, {self.evaluated} sets of splits tried>"
        )

    @property
    def gain(self) -> float:
        """Step time without splits ÷ step time with them."""
        return self.whole.plan.makespan_s / self.split.plan.makespan_s

    @property
    def speedup(self) -> float | None:
        """Time of all ops without splits on the best single device ÷ step time with them."""
        alone_s = self.whole.single_device_s
        return None if alone_s is None else alone_s / self.split.plan.makespan_s


def place_with_splits(
    job: Job,
    topology: Topology,
    options: Options | None = None,
    *,
    graph: OpGraph | None = None,
    devices: Sequence[str] = (),
    parts: int | None = None,
    rewrites: Sequence[str] | None = None,
    time_limit_s: float = 120.0,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
    **solving: Any,
) -> SplitResult:
    """The best plans found for a job without and with splits of its ops: see `dlplacer.place_with_splits`.

    `solving` is for `dlplacer.planning.place.place`.
    """
    began = time.monotonic()
    (options or Options()).require_makespan("splitting")
    step = TracedStep.of(job, rewrites)
    opened = open_devices(list(devices)) if devices else []
    try:
        whole = whole_graph(step, graph, opened)
        evaluate = evaluator(step, whole, topology, options or Options(), parts)
        choice = chosen(evaluate, opened, _SEARCH_SHARE * time_limit_s, solving.get("stop"), on_progress)
    finally:
        for device in opened:
            device.close()
    # Profiling comes on top of the limit, so with devices the time spent so far is not deducted.
    left_s = max(1.0, time_limit_s - (0.0 if opened else time.monotonic() - began))
    result = place(whole, topology, options, time_limit_s=left_s / 2, **solving)
    split = place(choice.graph, topology, options, time_limit_s=left_s / 2, **solving) if choice.splits else result
    if split.plan.makespan_s >= result.plan.makespan_s:
        return SplitResult(result, result, (), choice.evaluated)
    return SplitResult(result, split, choice.splits, choice.evaluated)


def evaluator(step: TracedStep, whole: OpGraph, topology: Topology, options: Options, parts: int | None) -> Evaluator:
    """A predictor of the step time under a set of splits; parts that were never timed cost three percent more."""
    count = len(topology.devices) if parts is None else parts
    if count < 2 and parts is not None:
        raise InputError(f"ops cannot be split into {parts} parts; give at least 2")
    return Evaluator(step, whole, tables_of(whole), topology, options, max(count, 2), _UNMEASURED_OVERHEAD)


def chosen(
    evaluate: Evaluator,
    devices: Sequence[RuntimeDevice],
    time_limit_s: float,
    stop: Event | None = None,
    on_progress: Callable[[Prospect], None] = lambda prospect: None,
) -> SplitChoice:
    """The choice by measurement where there are devices, else by estimates; none on a single device."""
    if len(evaluate.topology.devices) < 2:
        whole_s = evaluate(()).makespan_s
        return SplitChoice((), evaluate.whole, whole_s, whole_s, 1)
    if devices:
        job = evaluate.step.job
        return measured_choice(
            evaluate, lambda captured: profile_ops(job, captured, devices, _STEPS), time_limit_s, stop, on_progress
        )
    return choose_splits(evaluate, time_limit_s, stop, on_progress=on_progress)


def whole_graph(
    step: TracedStep, graph: OpGraph | None, devices: Sequence[RuntimeDevice] = (), steps: int = 7, warmup: int = 2
) -> OpGraph:
    """The step's graph without splits: the given one, profiled where its times were not measured on these devices.

    Raises InputError if the given graph is not the step's.
    """
    captured = step.captured()
    if graph is not None and structure_sha256(graph) != structure_sha256(captured.graph):
        raise InputError(
            f"the graph with the times is another one: {first_difference(graph, captured.graph)} (first: the given "
            "graph; second: this job without splits); profile the job again with the same options"
        )
    whole = captured.graph if graph is None else graph
    if not {device.type for device in devices} <= set(measured_types(whole)):
        whole = with_measured_times(whole, profile_ops(step.job, captured, devices, steps, warmup))
    return whole
