"""The step of one process: the program of all devices, of which it runs its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from dlplacer.core.errors import MismatchError
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import HOST_DEVICE
from dlplacer.runtime.distributed.collective_ops import Bucket, with_collectives, with_group
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.rank_channels import RankChannels
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.executor.backends import SegmentBackend
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.run import StepState
from dlplacer.runtime.placed.variant import Layouts, Variant, with_constants
from dlplacer.runtime.placed.variants import VariantMaker
from dlplacer.runtime.program.actions import Compute, Send
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

    whole: Captured
    group: RankGroup

    @cached_property
    def is_random(self) -> bool:
        """Whether an op draws random numbers on any process: all take the same numbers from torch's generator."""
        return any(code.random for code in self.whole.executable.codes.values())

    def outputs(self, state: StepState) -> list[Any]:
        """The loss as the mean over replicas, or what inference returns; the same on every process of a replica."""
        local = super().outputs(state)
        executable = self.whole.executable
        if executable.trains:
            spec = self.whole.graph.op(executable.producer[executable.outputs[0]]).outputs[0]
            memory = next(iter(self.devices.values())).torch_device if self.group.on_device else HOST_DEVICE
            loss = self.group.mean_over_replicas(local[0] if local else None, memory)
            return [loss.to(getattr(torch, spec.dtype)).reshape(spec.shape)]
        found = self.group.merged(dict(zip(self.captured.executable.outputs, local, strict=True)))
        return with_constants(executable, [found[name] for name in executable.outputs])

    @property
    def _away_on_device(self) -> bool:
        return self.group.on_device

    def _executor(self, program: Program, updater: Updater, backend: SegmentBackend) -> Executor:
        self.group.require_same(self._described(program))
        links = RankChannels(program, self.group, self.devices)
        graph, executable = self.captured.graph, self.captured.executable
        return Executor(graph, executable, program, self.devices, updater, backend, links, self.starts)

    def _described(self, program: Program) -> dict[str, Any]:
        """What all processes must have in common: every op, and what every device computes and sends."""
        ops = {
            f"op {op.id!r} of the step": (op.kind, self.home[op.id], repr(op.attrs), op.outputs)
            for op in self.captured.graph.ops
        }
        calls = {
            f"what {name!r} computes and sends": [str(action) for action in own if isinstance(action, Compute | Send)]
            for name, own in program.actions.items()
        }
        return {**ops, **calls}


class RankVariantMaker(VariantMaker):
    """A `VariantMaker` for one process of a group: with the plan's collectives, and of each variant the part here."""

    def __init__(self, group: RankGroup, *args: Any) -> None:
        super().__init__(*args)
        self._group = group

    def capture(self, job: Job, tensors: Mapping[str, torch.Tensor]) -> Captured:
        """As `VariantMaker.capture`, with the plan's collectives in training.

        Raises
        ------
        MismatchError
            If replicas would train parameters whose gradients the plan does not exchange.
        """
        captured = super().capture(job, tensors)
        if job.mode != "train" or self._group.ranks.replicas == 1:
            return captured
        buckets = map(Bucket.of_dict, (self.plan.graph.capture or {})["collectives"]["buckets"])
        before = {name for bucket in buckets for name in bucket.parameters}
        now = {code.name for code in captured.executable.of_role("gradient", "update")}
        for name in sorted(before ^ now):
            raise MismatchError(
                f"{name!r} was {'frozen' if name in before else 'unfrozen or added'} after the plan was applied, which "
                "exchanges the gradients of other parameters between its replicas; make a plan for this module with "
                "replicated_plan, and apply it"
            )
        return with_collectives(captured, self.plan)

    def variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """The variant of a captured step in an order: the part of this process."""
        group, whole = self._group, captured.executable
        order = self._per_rank(order)
        here = {op for device, ops in order.items() if group.rank_of(device) == group.rank for op in ops}
        codes = {op: code for op, code in whole.codes.items() if op in here}
        outputs = tuple(name for name in whole.outputs if whole.producer[name] in here)
        part = with_group(replace(whole, codes=codes, outputs=outputs, constants={}), group)
        return RankVariant(
            replace(captured, executable=part),
            order,
            self.devices,
            self.updater,
            layouts,
            captured,
            group,
            segments=self.segments,
            starts=self._starts,
        )

    def _per_rank(self, order: Order) -> Order:
        """The order with the network split: every process runs the collectives of its own devices, in this order."""
        ranks = self._group.ranks
        found = {name: list(ops) for name, ops in order.items() if name != NETWORK}
        if ranks.replicas > 1:
            found |= {name: [] for name in ranks.networks}
        for op in order.get(NETWORK, ()):
            found[ranks.network_of(self.plan.graph.op(op).attrs["device"])].append(op)
        return found
