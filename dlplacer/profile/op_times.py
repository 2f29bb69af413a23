"""Seconds per op, measured inside whole steps on the devices themselves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

from torch.utils import _pytree as pytree

from dlplacer.devices.base import Device
from dlplacer.frontend.capture import Captured
from dlplacer.frontend.job import Job
from dlplacer.graph import OpGraph
from dlplacer.frontend.step_module import job_tensors
from dlplacer.runtime.executor import StepState
from dlplacer.runtime.guards import require_data
from dlplacer.runtime.update import Updater
from dlplacer.runtime.variant import Variant, layouts_of


def profile_ops(
    job: Job, captured: Captured, devices: Sequence[Device], steps: int = 5, warmup: int = 2
) -> dict[str, dict[str, float]]:
    """Device type → op id → seconds: the median over steps.

    Every device runs the whole step by itself, all devices at the same time: caches, heap and memory bandwidth are as
    busy as when a plan runs. An op's time goes from the end of the op before it to its own end, so that the times sum
    up to the step.

    Parameters
    ----------
    job
        With a real module; its buffers change as in any training step, its weights do not.
    """
    leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
    variants = [_whole_step(captured, device, leaves) for device in devices]
    tensors = job_tensors(job)
    for name, tensor in tensors.items():
        require_data(name, tensor)
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def one_step(variant: Variant, device: Device, number: int) -> StepState:
        own = {name: tensor.to(device.torch_device) for name, tensor in tensors.items()}
        state = variant.joint.start(variant.with_tangent(variant.bind(own, leaves, 0, number), None), record=True)
        variant.joint.run(state)
        return state

    try:
        with ThreadPoolExecutor(len(devices)) as pool:
            for number in range(warmup + steps):
                states = list(pool.map(one_step, variants, devices, [number] * len(devices)))
                for device, state in zip(devices, states, strict=True):
                    if number >= warmup:
                        _collect(found[device.type], device, state)
    finally:
        for name, tensor in tensors.items():
            tensor.data.copy_(kept[name])
    return {device_type: {op: median(times) for op, times in by_op.items()} for device_type, by_op in found.items()}


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


def _whole_step(captured: Captured, device: Device, leaves: Sequence[Any]) -> Variant:
    order = {"all": captured.graph.topological_order}
    return Variant(captured, order, {"all": device}, Updater(None), layouts_of(leaves))


def _collect(found: dict[str, list[float]], device: Device, state: StepState) -> None:
    assert state.timeline is not None
    marks = state.timeline["all"]
    before = marks[0][1]
    for op, _, end in marks:
        found[op].append(device.elapsed_s(before, end))
        before = end
