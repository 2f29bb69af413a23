"""What handing a tensor over takes where cores are processes of their own, as a plan feels it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from dlplacer.core.errors import RunError
from dlplacer.core.trimmed_mean import trimmed_mean
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.caller_thread import call_on_core
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.step_inputs import StepInputs
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.process_executor import ProcessPrograms, StepProcesses
from dlplacer.runtime.processes.shared_tensors import SharedTensors
from dlplacer.runtime.processes.support import why_no_processes
from dlplacer.runtime.profile.dispatch_time import KERNELS, short_chain
from dlplacer.runtime.profile.op_times import copied_tensors
from dlplacer.runtime.profile.slot_times import SlotTimes, slot_times
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
    three to nine times as long as a copy that one core makes for itself. Steps take turns, and their mean difference
    counts: first quartiles would be those of a machine at its best.

    What asking another process takes is by how much a step is longer whose first op is the other's than one of a single
    process.
    """
    cores = [device for device in devices[:2] if isinstance(device, CpuDevice)]
    if why_no_processes(cores) is not None:
        return None
    try:
        chain = short_chain()
        small_s, small = _handover_s(cores, *chain, KERNELS)
        large_s, large = _handover_s(cores, *_negations(), (_NEGATION,))
        step_s = max(0.0, _asked_s(cores, *chain) - small_s)
    except RunError:  # the system makes no process: plans will not run so either
        return None
    slots = slot_times()
    s_per_byte = max(slots.write.s_per_byte, (large_s - small_s) / (large - small))
    slots = replace(slots, write=AlphaBeta(slots.write.latency_s, s_per_byte), step_s=step_s)
    return replace(slots, wait_s=max(0.0, small_s - slots.line.time_s(small)))


def _handover_s(cores: Sequence[CpuDevice], job: Job, captured: Captured, kinds: Sequence[str]) -> tuple[float, int]:
    """Seconds of a hand-over in a chain of ops of some kinds, and the bytes that it hands over."""
    chained = [op.id for op in captured.graph.ops if op.kind in kinds]
    halves, alternating = _rounds(cores, job, captured, (chained[len(chained) // 2 :], chained[1::2]))
    return _longer_s(alternating, halves) / (len(chained) - 2), captured.graph.edges_from[chained[0]][0].bytes


def _asked_s(cores: Sequence[CpuDevice], job: Job, captured: Captured) -> float:
    """Seconds by which a chain's step is longer if another process takes its first op, and hands over what it makes."""
    first = next(op.id for op in captured.graph.ops if op.kind in KERNELS)
    return _longer_s(*_rounds(cores, job, captured, ([first], [])))


def _rounds(
    cores: Sequence[CpuDevice], job: Job, captured: Captured, away: Sequence[Sequence[str]]
) -> list[tuple[float, ...]]:
    """[step][round] → seconds of the steps with these ops on the other core, in turn; without any, of one process.

    Raises
    ------
    RunError
        If there can be no second process.
    """
    first, second = cores
    steps: list[_Step] = []
    try:
        for ops in away:
            steps.append(
                _ProcessesStep(job, captured, {"a": first, "b": second}, ops)
                if ops
                else _Step(job, captured, {"a": InlineDevice(first.name, first.type)}, first.core)
            )
        rounds = [[step.seconds() for step in steps] for _ in range(_WARM_STEPS + _STEPS)]
    finally:
        for step in steps:
            step.close()
    return list(zip(*rounds[_WARM_STEPS:], strict=True))


def _longer_s(longer: Sequence[float], shorter: Sequence[float]) -> float:
    """By how much one step takes longer than another of the same round."""
    return trimmed_mean([long_s - short_s for long_s, short_s in zip(longer, shorter, strict=True)])


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
    """An inference step of one process.

    Parameters
    ----------
    devices
        Name → device; the ops run on the first, but for those that run on the second.
    core
        Of the caller's process.
    """

    def __init__(
        self,
        job: Job,
        captured: Captured,
        devices: Mapping[str, RuntimeDevice],
        core: int,
        away: Sequence[str] = (),
    ) -> None:
        elsewhere = set(away)
        here = [op.id for op in captured.graph.ops if op.id not in elsewhere]
        self.order = dict(zip(devices, (here, [*away]), strict=False))
        self._core = core
        self._leaves = flat_inputs(job)
        self._tensors = copied_tensors(job, captured, next(iter(devices.values())))
        self.updater = Updater(None)
        self._variant = Variant(captured, self.order, devices, self.updater, layouts_of(self._leaves))

    def seconds(self) -> float:
        """Take it, and how long that took."""
        inputs = self._variant.bind(self._tensors, self._leaves, 0, 0)
        begin = time.perf_counter()
        call_on_core(self._core, lambda: self._take(inputs))
        return time.perf_counter() - begin

    def close(self) -> None:
        """Nothing to end."""

    def _take(self, inputs: StepInputs) -> None:
        joint = self._variant.joint
        joint.run(joint.start(inputs))


class _ProcessesStep(_Step):
    """An inference step of two processes."""

    def __init__(self, job: Job, captured: Captured, cores: Mapping[str, CpuDevice], away: Sequence[str]) -> None:
        first = next(iter(cores.values()))
        super().__init__(job, captured, cores, first.core, away)
        program = lower(captured.graph, self.order, captured.executable.returned)
        made = ProcessPrograms(captured.graph, captured.executable, [program], cores, self.updater, SharedTensors())
        self._processes = StepProcesses(made)

    def close(self) -> None:
        """End the second process."""
        self._processes.close()

    def _take(self, inputs: StepInputs) -> None:
        state = self._processes.start(inputs, record=False)
        state.step.run(0, state)
