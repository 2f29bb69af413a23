"""What a self-test measures beside plans: how fast ops are issued, and what CUDA graphs gain."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import torch

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.selftest.check import Check, largest_difference
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.dispatch_time import HostTimed
from dlplacer.runtime.profile.op_times import Profiler

Build = Callable[[], Job]

_STEPS = 9
_WARMUP = 4
"""Graphs are captured in the third step."""


def dispatch_checks(job: Job, devices: Sequence[RuntimeDevice]) -> Iterator[Check]:
    """How fast the Python process issues the ops of a small job, for one device of every type; only reported."""
    captured = capture_job(job, default_rewrites())
    for device in {device.type: device for device in reversed(devices)}.values():
        profiler = Profiler(job, captured, [HostTimed(device)])
        samples = [profiler.step()[0].op_times_s for _ in range(_STEPS)]
        issued_s = median(sum(sample.values()) / len(sample) for sample in samples)
        with_op = "" if streams_of(device) is not None else ", with the ops: on a core a call returns when they end"
        yield Check("dispatch", f"{device.name}{with_op}", 1 / issued_s, None, "ops/s")


def graph_checks(
    name: str, build: Build, plan: Plan, captured: Captured, devices: Sequence[RuntimeDevice], tolerance: float
) -> Iterator[Check]:
    """A plan on one device with its ops replayed as CUDA graphs: the same numbers, and how much sooner.

    Devices without streams have no graphs.
    """
    device = devices[0]
    if streams_of(device) is None:
        yield Check("cuda graphs", f"{name} on {device.name}", None, None, "", note="a core has no CUDA graphs")
        return
    issued, issued_s, _ = _timed(build(), plan, captured, device, "eager")
    replayed, replayed_s, notes = _timed(build(), plan, captured, device, "cuda_graph")
    difference = largest_difference(replayed, issued)
    yield Check(
        "numbers", f"{name} with CUDA graphs", difference, tolerance, "largest difference", note="; ".join(notes)
    )
    yield Check("cuda graphs", f"{name} on {device.name}", issued_s / replayed_s, None, "x as fast")


def _timed(
    job: Job, plan: Plan, captured: Captured, device: RuntimeDevice, segments: str
) -> tuple[Mapping[str, torch.Tensor], float, tuple[str, ...]]:
    """What the last of several steps left, the median seconds of a step, and why ops were issued one by one."""
    placed = PlacedModule(job, plan, captured, {plan.topology.devices[0].id: device}, segments=segments)
    times = []
    for _ in range(_WARMUP + _STEPS):
        placed.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        loss = placed.step(*job.args, *job.targets, **job.kwargs)
        device.drain()
        times.append(time.perf_counter() - begin)
    return results_of(loss, placed), median(times[_WARMUP:]), placed.graph_notes


def results_of(loss: torch.Tensor, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers in the host's memory."""
    gradients = {name: tensor.grad for name, tensor in module.named_parameters() if tensor.grad is not None}
    found = {"loss": loss, **gradients, **dict(module.named_buffers())}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}
