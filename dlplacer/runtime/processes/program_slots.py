"""Which tensors of a step's programs cross processes, and a slot for each."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.frontend.torch.executable import Executable
from dlplacer.runtime.processes.shared_memory import SharedMemory
from dlplacer.runtime.processes.shared_tensors import SharedHomes
from dlplacer.runtime.processes.slot import TensorSlot
from dlplacer.runtime.program.actions import Action, Compute, Send
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
    """

    memory: SharedMemory
    crossing: Mapping[str, TensorSlot]
    inputs: tuple[Mapping[str, Mapping[str, TensorSlot]], ...]
    results: tuple[Mapping[str, Mapping[str, TensorSlot]], ...]

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
        sent = {action.tensor for actions in _all(programs) for action in actions if isinstance(action, Send)}
        returned = _returned(executable, programs)
        inputs = [
            {
                device: [op for op in _computed(program, device) if executable.codes[op].role in BROUGHT_IN]
                for device in away
            }
            for program in programs
        ]
        wanted = [sizes.get(tensor, 0) for tensor in sent]
        wanted += [sizes[executable.codes[op].value] for table in inputs for ops in table.values() for op in ops]
        wanted += [sizes.get(name, 0) for table in returned for device in away for name in table[device]]
        memory = SharedMemory(8 * extra_words + sum(map(TensorSlot.size_bytes, wanted)))
        memory.take(8 * extra_words)
        crossing = {tensor: TensorSlot(tensor, memory, sizes.get(tensor, 0), homes) for tensor in sorted(sent)}

        def of_result(name: str, computed: Collection[str]) -> TensorSlot:
            made = executable.producer[name]
            # A parameter that is returned must not be copied while its update goes on.
            if name in crossing and made in computed and executable.codes[made].role == "call":
                return crossing[name]
            return TensorSlot(name, memory, sizes.get(name, 0))

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
                for table, program in zip(returned, programs, strict=True)
            ),
        )

    def sent_by(self, device: str) -> dict[str, TensorSlot]:
        """Tensor → its slot, of all that a device sends in `with_results_sent`."""
        own = {name: slot for table in self.results for name, slot in table[device].items()}
        return {**own, **self.crossing}


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


def _all(programs: Sequence[Program]) -> Iterable[Sequence[object]]:
    return (actions for program in programs for actions in program.actions.values())


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
