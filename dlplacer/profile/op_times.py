"""Seconds per op, measured inside whole steps on the devices themselves."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import quantiles
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.devices.base import Device
from dlplacer.frontend.capture import Captured
from dlplacer.frontend.job import Job
from dlplacer.frontend.step_module import job_tensors
from dlplacer.graph import OpGraph
from dlplacer.runtime.executor import StepState
from dlplacer.runtime.guards import require_data
from dlplacer.runtime.update import Updater
from dlplacer.runtime.variant import Variant, layouts_of


def profile_ops(
    job: Job,
    captured: Captured,
    devices: Sequence[Device],
    steps: int = 7,
    warmup: int = 2,
    statistic: Callable[[Sequence[float]], float] | None = None,
) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds: the lower quartile over steps, since what interrupts an op only ever adds time.

    Every device runs the whole step by itself, all devices at the same time: caches, heap and memory bandwidth are as
    busy as when a plan runs. An op's time goes from the end of the op before it to its own end, so that the times sum
    up to the step.

    Parameters
    ----------
    job
        With a real module; every device works on a copy of it.
    statistic
        Seconds of an op in every step → its time; None for the lower quartile.
    """
    return profile_side_by_side(job, [captured], devices, steps, warmup, statistic)[0]


def profile_side_by_side(
    job: Job,
    captures: Sequence[Captured],
    devices: Sequence[Device],
    steps: int = 7,
    warmup: int = 2,
    statistic: Callable[[Sequence[float]], float] | None = None,
) -> list[dict[str, dict[str, float]]]:
    """As `profile_ops`, for several graphs of one job that take turns, so that their times can be compared."""
    of_steps = statistic or lower_quartile
    leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
    copies = [copied_tensors(job, captures[0], device) for device in devices]
    variants = [[whole_step(job, captured, device, leaves) for device in devices] for captured in captures]
    found: list[dict[str, dict[str, list[float]]]] = [defaultdict(lambda: defaultdict(list)) for _ in captures]

    def one_step(variant: Variant, tensors: Mapping[str, torch.Tensor], number: int) -> StepState:
        state = variant.joint.start(variant.with_tangent(variant.bind(tensors, leaves, 0, number), None), record=True)
        variant.joint.run(state)
        return state

    with ThreadPoolExecutor(len(devices)) as pool:
        for number in range(warmup + steps):
            for on_devices, times in zip(variants, found, strict=True):
                states = list(pool.map(one_step, on_devices, copies, [number] * len(devices)))
                for device, state in zip(devices, states, strict=True):
                    if number >= warmup:
                        _collect(times[device.type], device, state)
    return [
        {kind: {op: of_steps(times) for op, times in by_op.items()} for kind, by_op in by_type.items()}
        for by_type in found
    ]


def lower_quartile(times: Sequence[float]) -> float:
    """A quarter of the times are at most this."""
    return quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]


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


def whole_step(job: Job, captured: Captured, device: Device, leaves: Sequence[Any]) -> Variant:
    """All ops of a step on one device, which the program calls ``all``."""
    order = {"all": [op.id for op in captured.graph.ops]}
    return Variant(captured, order, {"all": device}, Updater(job.update), layouts_of(leaves))


def copied_tensors(job: Job, captured: Captured, device: Device) -> dict[str, torch.Tensor]:
    """Copies of the job's parameters and buffers on a device."""
    tensors = job_tensors(job)
    copies = {}
    for code in captured.executable.codes.values():
        if code.role in ("parameter", "buffer"):
            require_data(code.name, tensors[code.name])
            copies[code.name] = tensors[code.name].detach().to(device.torch_device, copy=True)
    return copies


def _collect(found: dict[str, list[float]], device: Device, state: StepState) -> None:
    assert state.timeline is not None
    for span in state.timeline["all"].spans(device):
        found[span.op].append(span.end_s - span.start_s)
