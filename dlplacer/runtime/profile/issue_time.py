"""The time for which issuing an op holds its Python process, on devices with streams and on cores."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.machines.costs.device_table import TURN
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.profile.own_steps import OwnStep, side_by_side

_SIDE, _LENGTH = 48, 200
"""Side of the matrices of the chain of short ops, and how many pairs of ops it has: 4 us each on a core, alone."""
_WARM_STEPS, _STEPS = 3, 15
"""Now and then two threads get along for a step, in a quarter of the time: the median of 15 is not one of those."""


def issue_time_s(devices: Sequence[RuntimeDevice]) -> float:
    """Seconds in which a Python process issues an op to devices of one kind.

    A chain of short ops runs on cores at once, as plans run. They start ops one after another, so it is the time of the
    chain ÷ all ops; where they gain from running at once, it is at most that. 0 for one core. To devices with streams
    the process issues a chain for the first.
    """
    cores = in_host_memory(devices)
    if cores and len(devices) < 2:
        return 0.0
    job, captured = _short_chain()
    order, ops = {"here": [op.id for op in captured.graph.ops]}, 2 * _LENGTH
    used = devices if cores else devices[:1]
    steps = [OwnStep(captured, order, "here", each, job_tensors(job), flat_inputs(job)) for each in used]
    issued = []
    for _ in range(_WARM_STEPS + _STEPS):
        side_by_side(OwnStep.plain, steps)
        issued.append(max(step.issued_s for step in steps) / (len(steps) * ops))
    return float(median(issued[_WARM_STEPS:]))


def with_timed_issue(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with the measured cost of issuing an op: cores are threads of one process."""
    # Three digits: it varies by a tenth from one run to the next.
    return _with_issue(topology, opened, float(f"{issue_time_s(opened):.3g}"), "timed with a chain of short ones")


def with_usual_issue(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with the issue cost of cores of one process on the machine of the device table.

    What issuing an op to other devices costs is left open.
    """
    return _with_issue(topology, opened, TURN.value if in_host_memory(opened) else 0.0, "of a generic host")


def _with_issue(topology: Topology, opened: Sequence[RuntimeDevice], issue_s: float, how: str) -> Topology:
    if not issue_s:
        return topology
    issue: dict[str, Any] = {"dispatch_s": issue_s}
    if in_host_memory(opened):
        issue |= {"process": "host", "asynchronous": False}
    devices = tuple(replace(device, **issue) for device in topology.devices)
    return replace(topology, devices=devices, source=f"{topology.source}; issue of an op {how}")


class _Chain(nn.Module):
    """Ops that read what the one before has made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(_SIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Products and tanh, alternating."""
        for _ in range(_LENGTH):
            x = torch.tanh(x @ self.weight)
        return x


def _short_chain() -> tuple[Job, Captured]:
    """Inference of a chain of short ops, and its capture."""
    job = Job(_Chain().eval(), args=(torch.zeros(_SIDE, _SIDE),), mode="infer")
    return job, capture_job(job, default_rewrites())
