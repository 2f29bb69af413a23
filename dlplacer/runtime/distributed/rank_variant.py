"""The step of one process: the program of all devices, of which it runs its own."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from dlplacer.frontend.torch.capture import Captured
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.messages.channels import RankChannels
from dlplacer.runtime.executor.executor import Executor, StepState
from dlplacer.runtime.executor.graph_rules import GraphRules
from dlplacer.runtime.executor.optimizer_update import Updater
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
    """

    group: RankGroup
    whole: Captured

    def outputs(self, state: StepState) -> list[Any]:
        """The loss as the mean over replicas, or what inference returns; the same on every process of a replica."""
        local = super().outputs(state)
        executable = self.whole.executable
        if executable.trains:
            spec = self.whole.graph.op(executable.producer[executable.outputs[0]]).outputs[0]
            loss = self.group.mean_over_replicas(local[0] if local else None)
            return [loss.to(getattr(torch, spec.dtype))]
        mine = dict(zip(self.captured.executable.outputs, local, strict=True))
        found = self.group.merged(mine)
        return with_constants(executable, [found[name] for name in executable.outputs])

    @property
    def _away_on_device(self) -> bool:
        return self.group.transport.on_device

    def _executor(self, program: Program, updater: Updater, rules: GraphRules | None = None) -> Executor:
        links = RankChannels(program, self.group, self.devices)
        return Executor(self.captured.graph, self.captured.executable, program, self.devices, updater, links, rules)


def local_part(whole: Captured, order: Order, group: RankGroup) -> Captured:
    """The captured step with the code of this process's ops alone; the graph stays whole."""
    here = {op for device, ops in order.items() if group.rank_of(device) == group.rank for op in ops}
    executable = whole.executable
    codes = {op: code for op, code in executable.codes.items() if op in here}
    outputs = tuple(name for name in executable.outputs if executable.producer[name] in here)
    return replace(whole, executable=replace(executable, codes=codes, outputs=outputs, constants={}))
