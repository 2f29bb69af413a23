"""What a plan is compared with: plain PyTorch on one device and on all cores, torch.compile, and their numbers."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from dlplacer.core.errors import first_line
from dlplacer.core.plan import Plan
from dlplacer.measure.eager import EagerStep
from dlplacer.measure.numerics import Differences, compare_with_eager
from dlplacer.measure.placed_job import PlacedJob
from dlplacer.measure.process_group import OneProcess
from dlplacer.planning.place import single_device_s
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.kinds import in_host_memory
from dlplacer.runtime.distributed.ranks import NETWORK

BASELINE, ALL_CORES, COMPILED = "baseline", "all cores", "compiled"


@dataclass
class Baselines:
    """The baselines that could be made.

    Attributes
    ----------
    steps
        `BASELINE`, `ALL_CORES`, `COMPILED` → a step.
    differences
        Name of a plan → how its numbers differ from plain PyTorch's.
    left_out
        Those that could not be made, and why.
    """

    steps: dict[str, Callable[[], object]] = field(default_factory=dict)
    differences: dict[str, Differences] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def home_of_all(plan: Plan) -> str | None:
    """The first device of a plan with memory for the whole model; None if there is none."""
    devices = [device for device in plan.topology.devices if device.id != NETWORK]
    needed_bytes = sum(op.footprint_bytes for op in plan.graph.ops)
    for device in devices:
        if device.memory_bytes is None or needed_bytes <= device.memory_bytes:
            return device.id
    # Ops that together are too large may fit over time: only the problem knows.
    if len(devices) < len(plan.topology.devices):
        return None
    alone_s = single_device_s(build_problem(plan.graph, plan.topology, plan.options))
    return None if alone_s is None else devices[0].id


def made_baselines(
    candidates: Mapping[str, PlacedJob], reference: nn.Module, group: OneProcess, compiled: bool
) -> Baselines:
    """Compare the numbers of a step of each candidate with plain PyTorch's, and make the steps to time.

    Parameters
    ----------
    reference
        A copy of the job's module as it was before the job was placed; plain PyTorch trains it.
    """
    main = next(iter(candidates.values()))
    found = Baselines(differences={name: Differences() for name in candidates})
    home = home_of_all(main.placed.plan)
    if home is None:
        found.left_out.append("plain PyTorch: the model fits on no single device")
        return found
    device = main.devices.get(home) or next(iter(main.devices.values()))
    try:
        for name, placed in candidates.items():
            found.differences[name] = compare_with_eager(placed, reference, device, group)
        second = copy.deepcopy(reference) if compiled else None
        eager = EagerStep([main.job], reference, device)
        eager.step()
    except torch.OutOfMemoryError:
        if group.all_reduce is not None:
            raise
        found.left_out.append(f"plain PyTorch: {device.name} has too little memory beside the plan")
        return found
    found.steps[BASELINE] = eager.step
    if group.all_reduce is None and in_host_memory(main.devices.values()):
        found.steps[ALL_CORES] = eager.step_on_all_cores
    if second is not None:
        step = EagerStep([main.job], second, device, compiled=True)
        try:
            step.step()
        except Exception as error:
            found.left_out.append(f"torch.compile: {first_line(error)}")
        else:
            found.steps[COMPILED] = step.step
    return found
