"""What handing a tensor over takes where cores are processes of their own, as a plan feels it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.processes.process_executor import ProcessPrograms, StepProcesses
from dlplacer.runtime.processes.shared_tensors import SharedTensors
from dlplacer.runtime.processes.support import why_no_processes
from dlplacer.runtime.profile.dispatch_time import KERNELS, short_chain
from dlplacer.runtime.profile.op_times import copied_tensors
from dlplacer.runtime.profile.slot_times import SlotTimes, slot_times
from dlplacer.runtime.profile.statistic import quartiles
from dlplacer.runtime.program.lower import lower

_WARM_STEPS, _STEPS = 5, 60
_NEGATED_BYTES, _NEGATIONS = 2**17, 40
_NEGATION = "aten.neg"


def process_link(devices: Sequence[RuntimeDevice]) -> SlotTimes | None:
    """A hand-over between two processes on the first two of these devices; None if there cannot be any.

    A chain of short ops runs on two processes, once in halves and once with every op on the other core than the one
    before it. What the second takes longer is what its hand-overs take: writing, seeing, reading, leaving the loop that
    waits, and an op's start in a cold core. Timed alone, writing and reading a tensor take a third of it. A chain of
    large tensors tells what a byte costs: written into lines that the other core holds, and read from there, it took
    three to nine times as long as a copy that one core makes for itself. Steps that were disturbed do not count: the
    first quartile of each stands for it.
    """
    cores = [device for device in devices[:2] if isinstance(device, CpuDevice)]
    if why_no_processes(cores) is not None:
        return None
    try:
        small_s, small = _handover_s(cores, *short_chain(), KERNELS)
        large_s, large = _handover_s(cores, *_negations(), (_NEGATION,))
    except RunError:  # the system makes no process: plans will not run so either
        return None
    slots = slot_times()
    s_per_byte = max(slots.write.s_per_byte, (large_s - small_s) / (large - small))
    slots = replace(slots, write=AlphaBeta(slots.write.latency_s, s_per_byte))
    return replace(slots, wait_s=max(0.0, small_s - slots.line.time_s(small)))


def _handover_s(cores: Sequence[CpuDevice], job: Job, captured: Captured, kinds: Sequence[str]) -> tuple[float, int]:
    """Seconds of a hand-over in a chain of ops of some kinds, and the bytes that it hands over.

    Raises
    ------
    RunError
        If there can be no second process.
    """
    chained = [op.id for op in captured.graph.ops if op.kind in kinds]
    away = [chained[len(chained) // 2 :], chained[1::2]]
    steps = [_Step(job, captured, dict(zip("ab", cores, strict=True)), ops) for ops in away]
    try:
        rounds = [[step.seconds() for step in steps] for _ in range(_WARM_STEPS + _STEPS)]
    finally:
        for step in steps:
            step.close()
    halves_s, alternating_s = (quartiles(times)[0] for times in zip(*rounds[_WARM_STEPS:], strict=True))
    return (alternating_s - halves_s) / (len(chained) - 2), captured.graph.edges_from[chained[0]][0].bytes


class _Negations(nn.Module):
    """Ops that do next to nothing but read and write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One negation after another."""
        for _ in range(_NEGATIONS):
            x = torch.neg(x)
        return x


def _negations() -> tuple[Job, Captured]:
    """Inference of a chain of negations of large tensors, and its capture."""
    job = Job(_Negations().eval(), args=(torch.zeros(_NEGATED_BYTES // 4),), mode="infer")
    return job, capture_job(job, default_rewrites())


class _Step:
    """An inference step on two processes.

    Parameters
    ----------
    cores
        Name → device; the ops run on the first.
    away
        Ops that run on the second.
    """

    def __init__(self, job: Job, captured: Captured, cores: Mapping[str, CpuDevice], away: Sequence[str]) -> None:
        first, second = cores
        elsewhere = set(away)
        order = {first: [op.id for op in captured.graph.ops if op.id not in elsewhere], second: list(away)}
        self._leaves = flat_inputs(job)
        self._tensors = copied_tensors(job, captured, cores[first])
        updater = Updater(None)
        self._variant = Variant(captured, order, cores, updater, layouts_of(self._leaves))
        program = lower(captured.graph, order, captured.executable.returned)
        made = ProcessPrograms(captured.graph, captured.executable, [program], cores, updater, SharedTensors())
        self._processes = StepProcesses(made)

    def seconds(self) -> float:
        """Take it, and how long that took."""
        inputs = self._variant.bind(self._tensors, self._leaves, 0, 0)
        begin = time.perf_counter()
        state = self._processes.start(inputs, record=False)
        state.step.run(0, state)
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the second process."""
        self._processes.close()
