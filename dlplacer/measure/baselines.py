"""Baselines of a plan: plain PyTorch on one device and on all cores, torch.compile, and their numerical results."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.core.errors import first_line
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.nodes import draws as draws_numbers
from dlplacer.measure.steps import EagerStep, OneProcess, PlacedJob
from dlplacer.planning.one_device import single_device_s
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.distributed.rank_module import replica_seed
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.executor.stateful_ops import drawn_with

BASELINE, ALL_CORES, COMPILED = "baseline", "eager_all_cores", "compiled"
"""Steps by name, which begins the names of fields of `RunReport`."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The largest differences of all processes to plain PyTorch, and its largest number: fields of `RunReport`."""

    max_abs_error: float | None = None
    largest_number: float | None = None
    full_batch_error: float | None = None
    draws: str = "none"


@dataclass
class Baselines:
    """The steps of the baselines by name, the differences of each plan, and why baselines are missing."""

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

    `reference`: a copy of the job's module as it was before the job was placed; plain PyTorch trains it.
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
            found.steps[COMPILED] = step.step
        except Exception as error:
            found.left_out.append(f"torch.compile: {first_line(error)}")
    return found


def compare_with_eager(
    placed: PlacedJob, reference: nn.Module, device: RuntimeDevice, group: OneProcess
) -> Differences:
    """Run one placed step and the same step in plain PyTorch: part by part, and with the whole batch at once.

    It compares the loss and the gradients of this process, or its parameters if the step has updated them. For
    inference it compares all tensors that the module returns. `reference` is the job's module before the step, which is
    left alone.
    """
    ours = placed.step()
    updated = placed.job.update is not None
    parameters = dict(placed.placed.named_parameters())

    # A copy each: batch norm's statistics and the optimizer change the module.
    def worst(jobs: Sequence[Job], draws: Sequence[SameDraws]) -> tuple[float, float]:
        eager = EagerStep(jobs, copy.deepcopy(reference), device)
        pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = [*zip(ours, eager.step(draws), strict=True)]
        for name, other in eager.module.named_parameters():
            mine = parameters[name]
            if not mine.is_meta:  # it lives on another process
                pairs.append((mine.detach(), other.detach()) if updated else (mine.grad, other.grad))
        zeros = [(None, theirs) for _, theirs in pairs]
        found = group.gathered((_largest_difference(pairs), _largest_difference(zeros)))
        return _largest([error for error, _ in found]), _largest([number for _, number in found])

    ops = [code.op for code in placed.placed.captured.executable.codes.values() if code.random]
    seeds = [replica_seed(placed.placed.step_seed, replica) for replica in range(len(placed.parts))]
    draws = [SameDraws(ops, seed, device.torch_device) for seed in seeds] if ops else []
    error, number = worst(placed.parts, draws)
    if ops:
        same = all(part.drawn == len(ops) for part in draws)
        return Differences(error, number, draws="same" if same else "different")
    return Differences(error, number, None if placed.whole is None else worst([placed.whole], ())[0])


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, the n-th random call draws what the n-th of the given ops draws with the seed of a step.

    `drawn`: number of random calls so far. If there are more or fewer than ops, the draws were not the same.
    """

    def __init__(self, ops: Sequence[str], seed: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops, self._seed, self._device = ops, seed, device
        self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws_numbers(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        self.drawn += 1
        if self.drawn > len(self._ops):
            return func(*args, **(kwargs or {}))
        with drawn_with(self._seed, self._ops[self.drawn - 1], self._device):
            return func(*args, **(kwargs or {}))


def _largest_difference(pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]) -> float:
    """Of the pairs in which one is there at least, where the other counts as zeros; NaN if one alone is no number."""
    found = [_differences(*(_wide(each) for each in pair)) for pair in pairs if any(each is not None for each in pair)]
    return _largest([float(each.max()) for each in found if each.numel()] or [0.0])


def _largest(differences: Sequence[float]) -> float:
    """The largest value; NaN if any is NaN, which Python's max ignores unless it comes first."""
    return float(torch.tensor(differences, dtype=torch.float64).max())


def _wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """In the host's memory, as numbers that hold every difference of two narrower ones."""
    return None if tensor is None else tensor.cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _differences(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
    """0 where both are equal, infinities too, or both no numbers."""
    there = b if a is None else a
    assert there is not None
    one, other = (torch.zeros_like(there) if each is None else each for each in (a, b))
    return (one - other).abs().masked_fill((one == other) | (one.isnan() & other.isnan()), 0.0)
