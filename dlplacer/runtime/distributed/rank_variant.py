"""The step of one process: the program of all devices, of which it runs its own."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from dlplacer.files.structure_hash import structure_sha256
from dlplacer.frontend.torch.capture import Captured
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.messages.channels import RankChannels
from dlplacer.runtime.distributed.same_call import SameCall
from dlplacer.runtime.executor.backends import SegmentBackend
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.run import StepState
from dlplacer.runtime.placed.variant import Variant, with_constants
from dlplacer.runtime.program.lower import Order
from dlplacer.runtime.program.program import Program


@dataclass(frozen=True)
class RankVariant(Variant):
    """A `Variant` whose executable has only the ops of this process; the graph and the order have all.

    Attributes
    ----------
    whole
        The captured step with the code of all ops.
    call
        What compares the calls of the module on all processes.
    """

    whole: Captured
    call: SameCall

    @property
    def group(self) -> RankGroup:
        """The processes that run the step."""
        return self.call.group

    @cached_property
    def is_random(self) -> bool:
        """Whether an op draws random numbers on any process: all take the same numbers from torch's generator."""
        return any(code.random for code in self.whole.executable.codes.values())

    @cached_property
    def number(self) -> int:
        """A digest of what the processes of the step must have in common: the ops, and where each is when."""
        text = structure_sha256(self.captured.graph) + json.dumps([*self.order.items()])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def described(self) -> Mapping[str, Any]:
        """Op id → what it does, where, and what it makes."""
        ops = ((op, home) for home, names in self.order.items() for op in map(self.captured.graph.op, names))
        return {op.id: [op.kind, home, repr(op.attrs), repr(op.outputs)] for op, home in ops}

    def knows_formats(self, kind: str) -> bool:
        """Whether the next run of a kind of call sends its tensors without headers."""
        return self._channels(kind).knows_formats

    def forget_formats(self, kind: str) -> None:
        """Send headers in the next run of a kind of call."""
        self._channels(kind).forget_formats()

    @contextlib.contextmanager
    def backward_call(self, step: int) -> Iterator[Callable[[], None]]:
        """As `Variant.backward_call`: compared with what the other processes call."""
        with self.call.made("backward"):
            yield lambda: self._agree_on_backward(step)

    def outputs(self, state: StepState) -> list[Any]:
        """The loss as the mean over replicas, or what inference returns; the same on every process of a replica."""
        local = super().outputs(state)
        executable = self.whole.executable
        if executable.trains:
            spec = self.whole.graph.op(executable.producer[executable.outputs[0]]).outputs[0]
            loss = self.group.mean_over_replicas(local[0] if local else None)
            return [loss.to(getattr(torch, spec.dtype)).reshape(spec.shape)]
        mine = dict(zip(self.captured.executable.outputs, local, strict=True))
        found = self.group.merged(mine)
        return with_constants(executable, [found[name] for name in executable.outputs])

    @property
    def _away_on_device(self) -> bool:
        return self.group.transport.on_device

    def _agree_on_backward(self, step: int) -> None:
        self.call.agree({"step whose loss": step}, self)

    def _channels(self, kind: str) -> RankChannels:
        executor = self.joint if kind in ("step", "evaluation") else self.stages[kind == "backward"]
        assert isinstance(executor.links, RankChannels)
        return executor.links

    def _executor(self, program: Program, updater: Updater, backend: SegmentBackend) -> Executor:
        links = RankChannels(program, self.group, self.devices)
        graph, executable = self.captured.graph, self.captured.executable
        return Executor(graph, executable, program, self.devices, updater, backend, links, self.starts)


def local_part(whole: Captured, order: Order, group: RankGroup) -> Captured:
    """The captured step with the code of this process's ops alone; the graph stays whole."""
    here = {op for device, ops in order.items() if group.rank_of(device) == group.rank for op in ops}
    executable = whole.executable
    codes = {op: code for op, code in executable.codes.items() if op in here}
    outputs = tuple(name for name in executable.outputs if executable.producer[name] in here)
    return replace(whole, executable=replace(executable, codes=codes, outputs=outputs, constants={}))
