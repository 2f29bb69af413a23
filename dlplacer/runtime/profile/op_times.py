"""Measured seconds per op on devices of this machine; the ops of one device run without the other devices."""

import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.kernels import FUSED_LSTM, LSTM_BACKWARD, LSTM_FORWARD
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.machines.costs.device_table import TURN
from dlplacer.runtime.devices.base import RuntimeDevice, T
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.executor.run import RankLinks
from dlplacer.runtime.executor.segment_graph import boxed_module, segment_graph
from dlplacer.runtime.executor.stateful_ops import Updater, length
from dlplacer.runtime.placed.variant import Variant, layouts_of, part_of, require_data
from dlplacer.runtime.program.program import Order, Program, Recv

OpTimes = Mapping[str, float]
"""Op id → seconds, in one step on one device."""


def typical(recorded: Sequence[OpTimes], whole_s: Sequence[float] | None = None) -> dict[str, float]:
    """Op id → median seconds, scaled so that all ops together take as long as a median step.

    Medians of single ops miss delays that rarely hit an op but nearly always hit a step. `whole_s`: seconds of
    unrecorded steps, which lack the cost of recording and may be compiled; by default, the sums of recorded ops.
    """
    medians = {op: median(times[op] for times in recorded) for op in recorded[0]}
    whole_s = [sum(times.values()) for times in recorded] if whole_s is None else whole_s
    total_s = sum(medians.values())
    scale = median(whole_s) / total_s if total_s else 1.0
    return {op: scale * seconds for op, seconds in medians.items()}


def settled(times: Sequence[float]) -> float:
    """Median time of a repeated action, without the first quarter of `times`: caches, threads and links warm up."""
    return float(median(times[len(times) // 4 :]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, interpolated linearly; a single value is returned twice."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


Times = dict[str, dict[str, float]]
"""Device type → op id → seconds."""

Report = Callable[[str, float], None]
"""Called before each step with a description of the work and the share of steps that are done."""

# The first steps of a thousand short ops take twice as long as later ones: the interpreter specialises code that has
# run a few times, and heaps fill.
_SHORT_STEPS, _SHORT_STEPS_S = 20, 0.5


class OwnStep:
    """The ops that `order` gives to device `home`, run in the segments of that order, but without the other devices.

    Only the tensors of these ops are held: sent tensors are dropped, and received tensors are made up (`StandIns`).
    `tensors`: name → parameter or buffer, copied if an op writes to it. `leaves`: the flat inputs of the step.
    """

    def __init__(
        self,
        captured: Captured,
        order: Order,
        home: str,
        device: RuntimeDevice,
        tensors: Mapping[str, torch.Tensor],
        leaves: Sequence[Any],
        *,
        job: Job | None = None,
        segments: str = "eager",
        starts: Mapping[str, float] | None = None,
    ) -> None:
        self.device, self.home, self._leaves = device, home, leaves
        own = part_of(captured, set(order[home]))

        def links(program: Program) -> StandIns:
            received = {action.tensor for action in program.actions[home] if isinstance(action, Recv)}
            return StandIns(captured, received, device, tensors)

        updater = Updater(None if job is None else job.update)
        how: dict[str, Any] = {"segments": segments, "starts": starts or {}, "links": links, "away_on_device": True}
        self._variant = Variant(own, order, {home: device}, updater, layouts_of(leaves), **how)
        written = {code.name for code in own.executable.of_role("mutation", "update")}
        self._tensors = {}
        for name in dict.fromkeys(code.name for code in own.executable.of_role("parameter", "buffer", "mutation")):
            require_data(name, tensors[name])
            self._tensors[name] = tensors[name].detach().to(device.torch_device, copy=name in written)

    def recorded(self) -> dict[str, float]:
        """Op → its seconds in a recorded step, including the overhead before the op; see `DeviceTimeline`."""
        timeline = self._variant.run(self._bound(), record=True).timelines[self.home]
        return {op: end_s - start_s for op, start_s, end_s in timeline.spans(self.device)}

    def plain(self) -> float:
        """Seconds for which an unrecorded step keeps the device busy."""
        bound = self._bound()
        begin = time.perf_counter()
        state = self._variant.run(bound)
        self.device.drain()
        wall_s = time.perf_counter() - begin
        self.issued_s = state.worked_s[self.home]
        return self.issued_s if self.device.streams is None else wall_s

    issued_s = 0.0
    """Seconds for which the last unrecorded step occupied the device's thread."""

    def _bound(self) -> Any:
        return self._variant.with_tangent(self._variant.bind(self._tensors, self._leaves, 0), None)


def side_by_side(take: Callable[[OwnStep], T], steps: Sequence[OwnStep], keeps_busy: bool = False) -> list[T]:
    """Call `take` on all steps in parallel, and return the results. With `keeps_busy`, a device that is done repeats
    its step until all are done, so that no device works alone at the end.
    """
    left = [None] * len(steps)

    def taken(step: OwnStep) -> T:
        try:
            return take(step)
        finally:
            left.pop()
            while keeps_busy and left:
                step.plain()

    if len(steps) == 1:
        return [take(steps[0])]
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(taken, steps))


class StandIns(RankLinks):
    """Links of an executor whose other devices do not exist: tensors of the right shape arrive at once.

    All `received` tensors of a dtype share memory as large as the largest of them. Parameters and buffers arrive
    as they are in `tensors`.
    """

    def __init__(
        self, whole: Captured, received: Collection[str], device: RuntimeDevice, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        self._made: dict[str, torch.Tensor] = {}
        memory: dict[torch.dtype, torch.Tensor] = {}
        wanted: dict[str, list[str]] = {}
        for name in sorted(received & whole.executable.producer.keys()):
            wanted.setdefault(whole.executable.producer[name], []).append(name)
        found: dict[str, torch.Tensor] = {}
        for op, names in wanted.items():
            code = whole.executable.codes[op]
            given = tensors.get(code.name) if code.role in ("parameter", "buffer") else None
            if given is not None and not given.is_meta and code.value in names:
                self._made[code.value] = given.detach().to(device.torch_device)
                names = [name for name in names if name != code.value]
            for name, made in zip(names, made_by(whole, op, names, device), strict=True):
                found[name] = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
        for name, like in sorted(found.items(), key=lambda each: -length(each[1])):
            if like.dtype not in memory:
                memory[like.dtype] = _filled((length(like),), (1,), like.dtype, device.torch_device)
            self._made[name] = memory[like.dtype].as_strided(like.shape, like.stride())

    def receive(self, tensor: str, source: str, target: str) -> torch.Tensor | None:  # noqa: ARG002
        """A tensor with the planned shape, dtype and strides; None for an edge that carries only an order."""
        return self._made.get(tensor)


def made_by(whole: Captured, op: str, names: Sequence[str], device: RuntimeDevice) -> list[torch.Tensor]:
    """Example values of an op's results, which the device's kernels compute from made-up inputs.

    The results themselves are made up if the op draws random numbers, its kernel fails on such inputs, or it reads an
    LSTM's workspace: a capture only estimates the workspace's size, and a kernel would write past a smaller one.
    """
    executable = whole.executable
    planned = executable.codes[op]
    code = segment_graph(executable, [op], names, device, Updater(None))

    def example(name: str) -> torch.Tensor:
        if name in executable.layouts:
            shape, strides, dtype = executable.layouts[name]
            return _filled(shape, strides, dtype, device.torch_device)
        spec = whole.graph.op(executable.producer[name]).outputs[0]
        return _filled(spec.shape, None, getattr(torch, spec.dtype), device.torch_device)

    if not planned.random and all(call.target is not LSTM_BACKWARD for call in planned.instructions):
        with contextlib.suppress(Exception), torch.no_grad():
            given = map(example, (*code.read, *(executable.codes[each].value for each in code.bound)))
            return list(boxed_module(code.graph, code.attributes).forward([*given]))
    return [*map(example, names)]


def _filled(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of 0.5 if the dtype has fractions: safe in divisions and logarithms; else of 0, a valid table index."""
    strides = torch.empty(shape, device="meta").stride() if strides is None else strides
    real = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return real.fill_(0.5 if real.is_floating_point() or real.is_complex() else 0)


def profile_ops(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Report = lambda what, share: None,
    memory_bytes: int | None = None,
) -> Times:
    """Op times on these devices, measured while all of them work: ops of a plan share memory bandwidth and cache too.

    Cores also wait for the interpreter. That wait is subtracted, because a plan counts it as `dispatch_s`, but an op's
    result is at least its time alone. A step that needs more than `memory_bytes`, by default a device's share of free
    memory, is timed in parts, whose inputs are made from their shapes.
    """
    if memory_bytes is None:
        sharing = Counter(device.torch_device for device in devices)
        memory_bytes = min(_free_bytes(device) // sharing[device.torch_device] for device in devices)
    parts = list(_parts(captured.graph.ops, memory_bytes))
    tensors, leaves = job_tensors(job), flat_inputs(job)
    found: Times = {device.type: {} for device in devices}
    for number, part in enumerate(parts):
        order = {"here": part, "elsewhere": [op.id for op in captured.graph.ops if op.id not in set(part)]}
        own = [OwnStep(captured, order, "here", device, tensors, leaves, job=job) for device in devices]
        _warm_up(own)
        alone, beside = defaultdict[str, Any](list), defaultdict[str, Any](list)
        for done in range(warmup + steps):
            on_step(f"step {done + 1} of {warmup + steps}", (number + done / (warmup + steps)) / len(parts))
            taken = zip(own, side_by_side(OwnStep.recorded, own), side_by_side(OwnStep.plain, own), strict=True)
            for step, recorded, plain in taken if done >= warmup else ():
                beside[step.device.type].append((recorded, plain))
                if step.device.streams is None and len(own) > 1:
                    alone[step.device.type].append((step.recorded(), step.plain()))
        for kind, times in found.items():
            together = typical(*zip(*beside[kind], strict=True))
            own_s = typical(*zip(*alone[kind], strict=True)) if alone[kind] else together
            times |= {op: max(own_s[op], seconds - TURN.value) for op, seconds in together.items()}
    return found


def _warm_up(steps: Sequence[OwnStep]) -> None:
    """Run steps side by side until the interpreter has specialised the code and heaps are filled."""
    begin = time.perf_counter()
    for _ in range(_SHORT_STEPS):
        side_by_side(OwnStep.plain, steps)
        if time.perf_counter() - begin > _SHORT_STEPS_S:
            break


def _parts(ops: Sequence[Op], memory_bytes: int) -> Iterator[list[str]]:
    """The ops in order, cut into parts that fit into the memory; an op is never cut.

    Memory for the largest result is reserved: all tensors from other parts share memory of that size.
    """
    # A gradient counts in the part that computes it; a plan charges it to its parameter, maybe in another part.
    made_bytes = [sum(spec.bytes for spec in op.outputs) for op in ops]
    needed_bytes = [max(made, op.weight_bytes) + op.state_bytes for op, made in zip(ops, made_bytes, strict=True)]
    room_bytes = memory_bytes - (max(made_bytes) if sum(needed_bytes) > memory_bytes else 0)
    part: list[str] = []
    taken_bytes = 0
    for op, more_bytes in zip(ops, needed_bytes, strict=True):
        if part and taken_bytes + more_bytes > room_bytes:
            yield part
            part, taken_bytes = [], 0
        part.append(op.id)
        taken_bytes += more_bytes + op.workspace_bytes
    yield part


def _free_bytes(device: RuntimeDevice) -> int:
    """Free memory of a device in bytes; all cores share the host's memory."""
    if not in_host_memory([device]):
        free: int = torch.get_device_module(device.torch_device).mem_get_info(device.torch_device)[0]
        return free
    try:
        rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(rows["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def timed_capture(
    job: Job, capture: Callable[[Sequence[str]], Captured], profile: Callable[[Captured], Times], on_cores: bool
) -> tuple[Captured, Times]:
    """The capture of a job and its op times. `capture` takes names of further rewrites; `profile` times a capture.

    Plain PyTorch runs an LSTM on a CPU as one kernel. Captured time step by time step, an LSTM is many short ops, which
    devices can share. In a wide layer, these ops take half as long as the kernel, because one product gives the
    gradients of all time steps; in a narrow one, twice as long. So cores time both captures, and the faster is kept.
    """
    captured = capture(())
    found = captured, profile(captured)
    if on_cores and any(isinstance(module, nn.LSTM) for module in job.module.modules()):
        fused = capture((FUSED_LSTM,))
        if any(code.instructions[0].target is LSTM_FORWARD for code in fused.executable.of_role("call")):
            both = found, (fused, profile(fused))
            found = min(both, key=lambda timed: min(sum(times.values()) for times in timed[1].values()))
    return found


def with_measured_times(graph: OpGraph, times: Mapping[str, Mapping[str, float]]) -> OpGraph:
    """The graph with measured times for these device types; times for other types stay."""
    ops = []
    for op in graph.ops:
        old = dict(op.time_s) if isinstance(op.time_s, Mapping) else {}
        ops.append(replace(op, time_s={**old, **{kind: by_op[op.id] for kind, by_op in times.items()}}))
    capture = {**(graph.capture or {}), "measured_on": sorted({*measured_types(graph), *times})}
    return replace(graph, ops=tuple(ops), capture=capture)


def measured_types(graph: OpGraph) -> tuple[str, ...]:
    """Device types whose times in the graph were measured."""
    return tuple((graph.capture or {}).get("measured_on", ()))
