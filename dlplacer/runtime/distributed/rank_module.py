"""A module of which every process holds and runs its part."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.other_parts import give_up_other_parts, with_metadata, without_other_parts
from dlplacer.runtime.distributed.rank_variant import RankVariant
from dlplacer.runtime.distributed.rank_variant_maker import RankVariantMaker
from dlplacer.runtime.distributed.same_call import SameCall, called
from dlplacer.runtime.placed.guards import require_unwritten
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.placed.variant import Variant
from dlplacer.runtime.placed.variants import VariantMaker


class RankModule(PlacedModule):
    """A `PlacedModule` over several processes, each of which calls it with the inputs of its replica.

    Parameters and buffers have data on the process that owns their device; elsewhere they are on the meta device and
    have no gradient, so that any torch optimizer updates what is here. `step` and the loss return the same value
    everywhere: the mean over the replicas. Gradients are means over the replicas too, as in training on the full batch;
    statistics of batch norm are those of a replica's own part, as in torch's DistributedDataParallel.

    A failure on one process raises its error on all; the group cannot be used afterwards.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        captured: Captured,
        devices: Mapping[str, RuntimeDevice],
        group: RankGroup,
        *,
        segments: str = "eager",
    ) -> None:
        self.group = group
        self._call = SameCall(group)
        super().__init__(job, plan, captured, devices, segments=segments)
        assert isinstance(self._primary, RankVariant)
        self._latest = self._primary
        give_up_other_parts(self, self._latest)

    @property
    def whole(self) -> Captured:
        """The graph and executable of all processes of a replica, at the shapes of the plan."""
        assert isinstance(self._primary, RankVariant)
        return self._primary.whole

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Forward, backward and the exchange of gradients in one program, as `PlacedModule.step`."""
        with self._call.made("step"):
            return super().step(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The loss, as `PlacedModule.forward`; call ``backward()`` on every process."""
        with self._call.made("forward" if self.training else "evaluation"):
            return super().forward(*inputs, **kwargs)

    def close(self) -> None:
        """End the devices' and channels' threads, unless a copy of this module uses them."""
        super().close()
        if not self._users:
            self.group.close()

    def gathered_state_dict(self) -> dict[str, Any]:
        """The plain module's state dict, put together from all processes of this replica; call it on every process."""
        give_up_other_parts(self, self._latest)
        state = self.state_dict()
        here = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and not value.is_meta}
        found = {**state, **self.group.merged(here)}
        kept = ((name, found[name]) for name in state if not getattr(found[name], "is_meta", False))
        return with_metadata(OrderedDict(kept), state)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, from the state dict of the whole model or of this process; each process takes its own part."""
        return super().load_state_dict(without_other_parts(state_dict, self.state_dict()), strict, assign)

    @property
    def _whole(self) -> Captured:
        return self.whole

    def _of(self, job: Job, captured: Captured) -> PlacedModule:
        return type(self)(job, self.plan, captured, self.devices, self.group, segments=self.segments)

    def _variant(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor]]:
        edition, snapshot = self._editions.current()
        settings = called(job, snapshot.trained)
        variant = self._variants.known(edition, job)
        if not self._call.agree(settings, self._checked(variant, job, snapshot.tensors)):
            variant = self._variants.find(edition, job)
            self._call.agree(settings, self._checked(variant, job, snapshot.tensors))
        assert variant is not None
        return variant, snapshot.tensors

    @staticmethod
    def _checked(variant: Variant | None, job: Job, tensors: Mapping[str, torch.Tensor]) -> RankVariant | None:
        """The variant, found to be one for these inputs before the other processes are told that all is well."""
        assert variant is None or isinstance(variant, RankVariant)
        if variant is not None:
            require_unwritten(variant.written, tensors, flat_inputs(job))
        return variant

    def _differentiated(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        # Without a parameter of its own, a process takes part in the backward pass all the same: its loss must have
        # something to start from.
        return super()._differentiated(variant, tensors) or [torch.zeros((), requires_grad=True)]

    def _built(self, job: Job, captured: Captured) -> Variant:
        variant = super()._built(job, captured)
        if self._maker.is_planned_mode(job):
            assert isinstance(variant, RankVariant)
            self._latest = variant
            give_up_other_parts(self, variant)
        return variant

    def _evaluate(self, called: Job) -> Any:
        found = super()._evaluate(called)
        is_loss = called.targets and called.loss is not None and isinstance(found, torch.Tensor) and not found.dim()
        if self.group.ranks.replicas == 1 or not is_loss:
            return found
        # One process of every replica gives its loss: all of a replica have the same.
        is_first = self.group.rank == self.group.ranks.ranks_of(self.group.replica)[0]
        return self.group.mean_over_replicas(found if is_first else None).to(found)

    def _draws_of_step(self, *, evaluates: bool = False) -> tuple[int, int]:
        return self.drawn_with(self.seed + seed_of(self.group.replica), evaluates)

    def _maker_of(self, job: Job) -> VariantMaker:
        return RankVariantMaker(job, self.plan, self.devices, self.updater, self.segments, self._call)


def seed_of(replica: int) -> int:
    """What a replica adds to the seed of its module: no two replicas draw the same."""
    return replica << 32
