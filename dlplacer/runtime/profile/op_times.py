"""Seconds per op, measured inside whole steps on the devices themselves."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.runtime.devices.allocator import reserve_heap
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.run import StepState
from dlplacer.runtime.placed.guards import require_data
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.profile.statistic import OpTimes, typical

A = TypeVar("A")
B = TypeVar("B")
# The interpreter specialises code that has run some times, and heaps fill: first steps of a thousand short ops take
# twice as long as later ones.

_SHORT_STEPS, _SHORT_STEPS_S = 20, 0.5
_IN_CACHE_S = 100e-6
"""Below that a core reads at most a megabyte or so, which its own cache holds."""
_SETTLED_S = 0.1
"""Steps shorter than this are taken twice where kinds of steps alternate, and the first is not kept: caches hold what
the step of the other kind has left."""

Times = dict[str, dict[str, float]]
"""Device type → op id → seconds."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step on one device.

    Attributes
    ----------
    op_times_s
        Op id → seconds.
    host_s
        Seconds of the step in which no op ran: binding the inputs, starting the device's program, waiting for its end.
    """

    op_times_s: OpTimes
    host_s: float

    @property
    def wall_s(self) -> float:
        """The whole step."""
        return self.host_s + sum(self.op_times_s.values())


class Profiler:
    """A job's whole step on every device at the same time, timed op by op.

    Every device runs the whole step on its own copy of the job's tensors, all devices at once: caches, heap, memory
    bandwidth and the interpreter are as busy as when a plan runs. An op's time goes from the end of the op before it to
    its own end, so that the times sum up to the step.

    Parameters
    ----------
    job
        With a real module.
    """

    def __init__(self, job: Job, captured: Captured, devices: Sequence[RuntimeDevice]) -> None:
        self.devices = tuple(devices)
        self._leaves = flat_inputs(job)
        self._copies = [copied_tensors(job, captured, device) for device in devices]
        order, layouts = {"all": [op.id for op in captured.graph.ops]}, layouts_of(self._leaves)
        self._variants = [Variant(captured, order, {"all": here}, Updater(job.update), layouts) for here in devices]
        self._steps_done = 0

    def step(self, count: int | None = None) -> tuple[StepSample, ...]:
        """One step on the first `count` devices, or on all; a sample of each, in their order."""
        self._steps_done += 1
        devices = self.devices[:count]
        found = at_the_same_time(self._run, list(zip(self._variants[:count], self._copies, strict=False)))
        samples = []
        for device, (state, wall_s) in zip(devices, found, strict=True):
            times = recorded_times(device, state)
            samples.append(StepSample(times, max(0.0, wall_s - sum(times.values()))))
        return tuple(samples)

    def settled_step(self, count: int | None = None) -> tuple[StepSample, ...]:
        """As `step`, behind one that is not kept where steps are short."""
        samples = self.step(count)
        return self.step(count) if samples[0].wall_s < _SETTLED_S else samples

    def _run(self, what: tuple[Variant, Mapping[str, torch.Tensor]]) -> tuple[StepState, float]:
        """The step's state, and how long it took as seen from outside."""
        variant, tensors = what
        begin = time.perf_counter()
        inputs = variant.bind(tensors, self._leaves, 0, self._steps_done)
        state = variant.joint.start(variant.with_tangent(inputs, None), record=True)
        variant.joint.run(state)
        return state, time.perf_counter() - begin


def at_the_same_time(take: Callable[[A], B], each: Sequence[A]) -> list[B]:
    """What it gives for each of these, in threads if there are several."""
    if len(each) == 1:
        return [take(each[0])]
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(take, each))


def profile_ops(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Times:
    """Device type → op id → typical seconds over several steps of a `Profiler`; see `typical`.

    `on_step` hears before each step how many have been taken, warm-up among them, and how many there are. Where steps
    are short, more precede the warm-up.
    """
    return profiled_in_turn(Profiler(job, captured, devices), (len(devices),), steps, warmup, on_step)[0]


def profiled_in_turn(
    profiler: Profiler, counts: Sequence[int], steps: int, warmup: int, on_step: Callable[[int, int], None]
) -> list[Times]:
    """Times as of `profile_ops` for each of these counts of devices, of which the first work and the others idle.

    Steps of all kinds alternate, so that what drifts in the machine drifts in all.
    """
    for count in counts:
        begin = time.perf_counter()
        for _ in range(_SHORT_STEPS):
            profiler.step(count)
            if time.perf_counter() - begin > _SHORT_STEPS_S:
                break
    found: list[dict[str, list[OpTimes]]] = [defaultdict(list) for _ in counts]
    for number in range(warmup + steps):
        on_step(number, warmup + steps)
        for count, of_types in zip(counts, found, strict=True):
            samples = profiler.settled_step(count) if len(counts) > 1 else profiler.step(count)
            if number >= warmup:
                for device, sample in zip(profiler.devices, samples, strict=False):
                    of_types[device.type].append(sample.op_times_s)
    return [{kind: typical(samples) for kind, samples in of_types.items()} for of_types in found]


def times_for_planning(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Callable[[str, float], None] = lambda what, share: None,
) -> Times:
    """Op times on these devices while all of them work; those of short ops on cores while the others idle.

    Side by side an op waits for the interpreter, which the replay adds (`dlplacer.problem.dispatch`). Longer ops lose
    memory bandwidth and cache to the other cores, which they will lose in a plan too.

    Parameters
    ----------
    on_step
        Hears before each step what is done, and which share of the steps has been taken.
    """
    if in_host_memory(devices):
        # In small pages, ops that wait for memory take up to 1.4 times as long. What is freed leaves gaps: a part more.
        reserve_heap((1 + len(devices)) * sum(op.footprint_bytes for op in captured.graph.ops))

    def report(done: int, total: int) -> None:
        on_step(f"step {done + 1} of {total}", done / total)

    counts = (len(devices), 1) if len(devices) > 1 and in_host_memory(devices) else (len(devices),)
    together, *alone = profiled_in_turn(Profiler(job, captured, devices), counts, steps, warmup, report)
    for kind, times in alone[0].items() if alone else ():
        together[kind] |= {op: time_s for op, time_s in times.items() if time_s < _IN_CACHE_S}
    return together


def with_measured_times(graph: OpGraph, times: Mapping[str, Mapping[str, float]]) -> OpGraph:
    """The graph with measured times for these device types beside the times that it has for others."""
    ops = []
    for op in graph.ops:
        old = dict(op.time_s) if isinstance(op.time_s, Mapping) else {}
        ops.append(replace(op, time_s={**old, **{kind: by_op[op.id] for kind, by_op in times.items()}}))
    capture = {**(graph.capture or {}), "measured_on": sorted({*measured_types(graph), *times})}
    return replace(graph, ops=tuple(ops), capture=capture)


def measured_types(graph: OpGraph) -> tuple[str, ...]:
    """Device types whose times in the graph were measured."""
    return tuple((graph.capture or {}).get("measured_on", ()))


def copied_tensors(job: Job, captured: Captured, device: RuntimeDevice) -> dict[str, torch.Tensor]:
    """Copies of the job's parameters and buffers on a device."""
    tensors = job_tensors(job)
    copies = {}
    for code in captured.executable.of_role("parameter", "buffer"):
        require_data(code.name, tensors[code.name])
        copies[code.name] = tensors[code.name].detach().to(device.torch_device, copy=True)
    return copies


def recorded_times(device: RuntimeDevice, state: StepState) -> dict[str, float]:
    """Op id → seconds, of a recorded step of a program on one device, which it calls ``all``."""
    assert state.timeline is not None
    return {span.op: span.end_s - span.start_s for span in state.timeline["all"].spans(device)}
