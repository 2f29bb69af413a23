"""How the variants of a module over several processes are made: with collectives, and of each the part that is here."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.collective_ops import Bucket, with_collectives, with_group
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.rank_variant import RankVariant, local_part
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.distributed.same_call import SameCall
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.variant import Layouts, Variant
from dlplacer.runtime.placed.variants import VariantMaker
from dlplacer.runtime.program.lower import Order


class RankVariantMaker(VariantMaker):
    """A `VariantMaker` for one process of a group.

    Parameters
    ----------
    call
        What compares the calls of the module on all processes.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        devices: Mapping[str, RuntimeDevice],
        updater: Updater,
        segments: str,
        call: SameCall,
    ) -> None:
        super().__init__(job, plan, devices, updater, segments)
        self._call = call

    def capture(self, job: Job, tensors: Mapping[str, torch.Tensor]) -> Captured:
        """As `VariantMaker.capture`, with the plan's collectives in training.

        Raises
        ------
        MismatchError
            If replicas would train parameters whose gradients the plan does not exchange.
        """
        captured = super().capture(job, tensors)
        if job.mode != "train":
            return captured
        if self._call.group.ranks.replicas > 1:
            self._require_exchanged(captured)
        return with_collectives(captured, self.plan)

    def variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """The variant of a captured step in an order: the part of this process."""
        group = self._call.group
        order = per_rank(order, self.plan, group)
        part = local_part(captured, order, group)
        bound = replace(part, executable=with_group(part.executable, group))
        return RankVariant(
            bound,
            order,
            self.devices,
            self.updater,
            layouts,
            captured,
            self._call,
            segments=self.segments,
            starts=self._starts,
        )

    def _require_exchanged(self, captured: Captured) -> None:
        """Return if the plan exchanges the gradients that there are."""
        buckets = (self.plan.graph.capture or {})["collectives"]["buckets"]
        before = {name for bucket in map(Bucket.of_dict, buckets) for name in bucket.parameters}
        now = {code.name for code in captured.executable.of_role("gradient", "update")}
        for name in sorted(before ^ now):
            raise MismatchError(
                f"{name!r} was {'frozen' if name in before else 'unfrozen or added'} after the plan was applied, which "
                "exchanges the gradients of other parameters between its replicas; make a plan for this module with "
                "replicated_plan, and apply it"
            )


def per_rank(order: Order, plan: Plan, group: RankGroup) -> Order:
    """The order with the network split: every process runs the collectives of its own devices, in the plan's order."""
    found: dict[str, list[str]] = {name: list(ops) for name, ops in order.items() if name != NETWORK}
    if group.ranks.replicas > 1:
        found.update({name: [] for part in range(group.ranks.per_replica) for name in group.ranks.networks(part)})
    for op in order.get(NETWORK, ()):
        found[group.ranks.network_of(plan.graph.op(op).attrs["device"])].append(op)
    return found
