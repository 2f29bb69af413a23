"""A variant whose devices are threads or processes, and what a placed module knows of that choice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.executor import StepState
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.step_inputs import StepInputs
from dlplacer.runtime.placed.variant import StepExecutor, Variant
from dlplacer.runtime.processes.chosen_executor import ChosenStep
from dlplacer.runtime.processes.process_choice import PROCESSES, ProcessChoice, ProcessTrial, require_wanted
from dlplacer.runtime.processes.process_executor import ProcessPrograms, StepProcesses
from dlplacer.runtime.processes.shared_tensors import SharedTensors
from dlplacer.runtime.processes.shared_updater import SharedUpdater
from dlplacer.runtime.processes.storage_users import shared_outside
from dlplacer.runtime.processes.support import why_no_processes
from dlplacer.runtime.program.actions import Compute
from dlplacer.runtime.program.program import Program

_SURELY_LARGE = 5.0
"""A plan's times may be estimates: ops are taken to be large without a trial from so many times the limit on."""


class ProcessUse:
    """Whether a placed module's devices may be processes, and what was chosen for the step that ran last.

    Parameters
    ----------
    wanted
        ``auto``, ``on`` or ``off``.
    tensors
        Name → tensor of the module. Processes see it in other memory, to which a tensor outside of the module with
        which it shares its memory would not follow; so where there is one, processes must be asked for.

    Raises
    ------
    InputError
        If processes are asked for where they cannot be.
    """

    def __init__(
        self,
        wanted: str,
        plan: Plan,
        devices: Mapping[str, RuntimeDevice],
        tensors: Iterable[tuple[str, torch.Tensor]] = (),
    ) -> None:
        require_wanted(wanted)
        self.wanted = wanted
        self.tensors = SharedTensors()
        self._last: ChosenStep | None = None
        reason = "not asked for" if wanted == "off" else why_no_processes(list(devices.values()))
        if wanted == "on" and reason is not None and len(devices) > 1:
            raise InputError(f'processes="on": {reason}; leave it at "auto"')
        if wanted == "auto" and reason is None:
            reason = _why_not_tried(plan)
        if wanted == "auto" and reason is None and (name := shared_outside(tensors)) is not None:
            reason = (
                f"the memory of {name!r} is used outside of the module too (a view of it, a state dict that is kept), "
                "and processes need it elsewhere"
            )
        self.possible = reason is None
        self._unused = ProcessChoice(wanted, False if reason else None, reason or "no step has run")

    @property
    def choice(self) -> ProcessChoice:
        """What was chosen for the step that ran last."""
        return self._unused if self._last is None else self._last.choice

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers of the step that ran last."""
        return () if self._last is None else self._last.pids

    @property
    def by_turns(self) -> bool:
        """Whether the devices of the step that ran last are threads that take turns."""
        return self._last is not None and self._last.by_turns

    def updater_of(self, job: Job) -> Updater:
        """The optimizer inside the step."""
        return SharedUpdater(job.update, self.tensors) if self.possible else Updater(job.update)

    def share(
        self,
        tensors: Iterable[torch.Tensor],
        updater: Updater,
        updated: Mapping[str, torch.Tensor],
        *,
        is_edited: bool = False,
    ) -> None:
        """Have worker processes see a module's parameters and buffers, and the optimizer's state of some.

        Parameters
        ----------
        is_edited
            Whether the module was edited since it was placed: tensors that were given memory which is used outside of
            the module too stay there, unless processes were asked for; then threads run the step.
        """
        if self.possible:
            tensors = [*tensors]
            new = ((str(number), one) for number, one in enumerate(tensors) if not self.tensors.holds(one))
            if not (is_edited and self.wanted == "auto" and shared_outside(new) is not None):
                self.tensors.share(tensors)
            if isinstance(updater, SharedUpdater):
                updater.share(updated)

    def runs_on_one_device(self) -> None:
        """Note that the plan leaves nothing to choose."""
        self._unused = ProcessChoice(self.wanted, False, "the plan uses one device")

    def ran(self, step: ChosenStep) -> None:
        """Note the step that was run last."""
        self._last = step


@dataclass(frozen=True)
class ProcessVariant(Variant):
    """A `Variant` on CPU devices, whose steps run by threads or by processes."""

    use: ProcessUse
    _steps: list[ChosenStep] = field(default_factory=list)

    def close(self) -> None:
        """End the worker processes."""
        for step in self._steps:
            step.close()

    def _executors(self, programs: Sequence[Program], updater: Updater) -> tuple[StepExecutor, ...]:
        threads = [self._executor(program, updater) for program in programs]
        used = [name for name in self.devices if any(program.actions.get(name) for program in programs)]
        devices = {name: device for name, device in self.devices.items() if isinstance(device, CpuDevice)}
        if len(used) < 2 or len(devices) < len(self.devices):
            self.use.runs_on_one_device()
            return tuple(threads)
        graph, executable = self.captured.graph, self.captured.executable
        self.use.tensors.share(code.constant for code in executable.of_role("constant"))
        here = ProcessPrograms(graph, executable, programs, devices, updater, self.use.tensors)
        trial = ProcessTrial(self.use.wanted, self._most_calls(programs))
        step = ChosenStep(threads, StepProcesses(here), trial)
        self._steps.append(step)
        return tuple(_Noting(executor, step, self.use) for executor in step.executors)

    def _most_calls(self, programs: Sequence[Program]) -> int:
        """Calls of the device that has most of them."""
        codes = self.captured.executable.codes
        calls: dict[str, int] = dict.fromkeys(self.devices, 0)
        for program in programs:
            for device, actions in program.actions.items():
                calls[device] += sum(isinstance(one, Compute) and codes[one.op].role == "call" for one in actions)
        return max(calls.values())


class _Noting:
    """Tells a placed module which of its steps ran last."""

    def __init__(self, executor: Any, step: ChosenStep, use: ProcessUse) -> None:
        self._executor, self._step, self._use = executor, step, use

    def start(self, inputs: StepInputs, record: bool = False) -> StepState:
        self._use.ran(self._step)
        state: StepState = self._executor.start(inputs, record)
        return state

    def run(self, state: StepState) -> None:
        self._executor.run(state)


def _why_not_tried(plan: Plan) -> str | None:
    """Whether a plan's ops are so long that threads cannot be in each other's way; the reason, if so."""
    busiest = max((len(ops) for ops in plan.order.values()), default=0)
    limit_s = _SURELY_LARGE * PROCESSES.large_op_s
    if busiest and plan.makespan_s / busiest > limit_s:
        return f"by the plan its ops take {plan.makespan_s / busiest * 1e3:.2g} ms each"
    return None
