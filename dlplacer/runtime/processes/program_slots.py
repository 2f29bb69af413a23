"""Which tensors of a step's programs cross processes, and a slot for each."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.processes.result_slot import AnySlot, ResultSlot
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.shared_tensors import SharedHomes
from dlplacer.runtime.processes.slot import TensorSlot
from dlplacer.runtime.program.actions import Action, Compute, Recv, Send
from dlplacer.runtime.program.program import Program

BROUGHT_IN = ("input", "tangent")
"""Roles of ops whose tensor comes with each step."""
Returned = tuple[Mapping[str, tuple[str, ...]], ...]
"""[program] → device → tensors that the caller gets from there."""


@dataclass(frozen=True)
class ProgramSlots:
    """The slots of the programs that run one after another in a step.

    Attributes
    ----------
    crossing
        Tensor → its slot on the way between devices.
    inputs
        [program] → device → op that brings a tensor in → its slot.
    results
        [program] → device → tensor that the caller gets → its slot; on its way between devices too if it is made there.
        For the caller's own device only what it receives.
    """

    memory: SharedMemory
    crossing: Mapping[str, AnySlot]
    inputs: tuple[Mapping[str, Mapping[str, TensorSlot]], ...]
    results: tuple[Mapping[str, Mapping[str, AnySlot]], ...]

    @classmethod
    def of(
        cls,
        graph: OpGraph,
        executable: Executable,
        programs: Sequence[Program],
        away: Sequence[str],
        extra_words: int,
        homes: SharedHomes,
    ) -> "ProgramSlots":
        """Slots for programs, with zeroed words for other purposes at the beginning of their memory.

        Parameters
        ----------
        away
            The devices whose process is not the caller's.
        homes
            What all processes see and need not copy on its way between devices.
        """
        sizes = _capacities(graph, executable)
        sent = set[str]().union(*map(_sent, programs))
        returned = _returned(executable, programs)
        inputs = [
            {
                device: [op for op in _computed(program, device) if executable.codes[op].role in BROUGHT_IN]
                for device in away
            }
            for program in programs
        ]
        names = Counter(name for table in returned for of_device in table.values() for name in of_device)
        sends = Counter(name for program in programs for name in _sent(program))
        # A gradient may also be an output, which another program returns.
        single = {name for name, count in names.items() if count == 1 and sends[name] <= 1}
        received = [_received(program, table, single, away) for program, table in zip(programs, returned, strict=True)]
        lent = {name for table in received for of_device in table.values() for name in of_device}
        wanted = [sizes.get(tensor, 0) for tensor in sent - lent]
        wanted += [sizes[executable.codes[op].value] for table in inputs for ops in table.values() for op in ops]
        results = [sizes.get(name, 0) for table in returned for device in away for name in table[device]]
        results += [sizes.get(name, 0) for name in lent]
        size_bytes = sum(map(TensorSlot.size_bytes, wanted)) + sum(map(ResultSlot.size_bytes, results))
        memory = SharedMemory(8 * extra_words + size_bytes)
        memory.take(8 * extra_words)
        crossing: dict[str, AnySlot] = {
            tensor: ResultSlot(tensor, memory, sizes.get(tensor, 0))
            if tensor in lent
            else TensorSlot(tensor, memory, sizes.get(tensor, 0), homes)
            for tensor in sorted(sent)
        }

        def of_result(name: str, computed: Collection[str]) -> AnySlot:
            made = executable.producer[name]
            # A parameter that is returned must not be copied while its update goes on.
            if name in crossing and made in computed and executable.codes[made].role == "call":
                return crossing[name]
            return (ResultSlot if name in single else TensorSlot)(name, memory, sizes.get(name, 0))

        return cls(
            memory,
            crossing,
            tuple(
                {
                    device: {op: TensorSlot(op, memory, sizes[executable.codes[op].value]) for op in ops}
                    for device, ops in table.items()
                }
                for table in inputs
            ),
            tuple(
                {
                    device: {name: of_result(name, _computed(program, device)) for name in table[device]}
                    for device in away
                }
                | {device: {name: crossing[name] for name in found} for device, found in own.items()}
                for table, program, own in zip(returned, programs, received, strict=True)
            ),
        )

    def used_results(self, number: int) -> list[str]:
        """Results that somebody still uses where the last run of a program has put them."""
        slots = [entry for table in self.results[number].values() for entry in table.items()]
        return [name for name, slot in slots if isinstance(slot, ResultSlot) and slot.look()]

    def note_used(self, number: int, used: Collection[str]) -> None:
        """Hear from the caller's process what `used_results` has found there."""
        for table in self.results[number].values():
            for name, slot in table.items():
                if isinstance(slot, ResultSlot):
                    slot.is_used = name in used

    def results_of(self, device: str) -> dict[str, AnySlot]:
        """Tensor → its slot, of all that the caller gets from a device."""
        return {name: slot for table in self.results for name, slot in table[device].items()}


def with_results_sent(
    program: Program, device: str, results: Collection[str], executable: Executable, caller: str
) -> Program:
    """The program in which a device also sends what the caller gets, as soon as a call has made it.

    What it has from elsewhere it does not send, nor parameters and buffers, which the step may change.
    """
    sent = {action.tensor for action in program.actions[device] if isinstance(action, Send)}
    of_op = defaultdict(list)
    for name in results:
        made = executable.producer[name]
        if name not in sent and executable.codes[made].role == "call":
            of_op[made].append(name)
    actions: list[Action] = []
    for action in program.actions[device]:
        actions.append(action)
        if isinstance(action, Compute):
            actions += [Send(name, caller) for name in of_op[action.op]]
    return Program({**program.actions, device: tuple(actions)})


def _sent(program: Program) -> set[str]:
    return {action.tensor for actions in program.actions.values() for action in actions if isinstance(action, Send)}


def _received(
    program: Program, returned: Mapping[str, Sequence[str]], single: Collection[str], away: Collection[str]
) -> dict[str, list[str]]:
    """The caller's device → what it gets from another one and returns."""
    return {
        device: [
            action.tensor
            for action in actions
            if isinstance(action, Recv)
            and action.source in away
            and action.tensor in single
            and action.tensor in returned[device]
        ]
        for device, actions in program.actions.items()
        if device not in away
    }


def _computed(program: Program, device: str) -> list[str]:
    return [action.op for action in program.actions[device] if isinstance(action, Compute)]


def _returned(executable: Executable, programs: Sequence[Program]) -> Returned:
    """Outputs where they are made, gradients where they end."""
    outputs = defaultdict(list)
    for name in executable.outputs:
        outputs[executable.producer[name]].append(name)
    for code in executable.of_role("gradient"):
        outputs[code.op].append(code.reads[0])
    return tuple(
        {
            device: tuple(dict.fromkeys(name for op in _computed(program, device) for name in outputs.get(op, ())))
            for device in program.actions
        }
        for program in programs
    )


def _capacities(graph: OpGraph, executable: Executable) -> dict[str, int]:
    """Tensor → bytes of its storage: at most those of its op's outputs, of which it may be a view."""
    of_op = {op.id: max(map(_storage_bytes, [op]), default=0) for op in graph.ops}
    sizes = {value: of_op[op] for value, op in executable.producer.items()}
    for edge in graph.edges:
        if edge.tensor in sizes:
            sizes[edge.tensor] = max(sizes[edge.tensor], edge.bytes)
    return sizes


def _storage_bytes(op: Op) -> int:
    sizes = [spec.bytes for spec in op.outputs]
    for spec in op.outputs:
        dtype = getattr(torch, spec.dtype, None)
        sizes.append(math.prod(spec.shape) * dtype.itemsize if isinstance(dtype, torch.dtype) else 0)
    return max(sizes, default=0)
