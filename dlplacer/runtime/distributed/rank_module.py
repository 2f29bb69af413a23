"""A module of which every process holds and runs its part."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.rank_variant import RankVariant, RankVariantMaker
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.placed.variant import Variant
from dlplacer.runtime.placed.variants import VariantMaker


class RankModule(PlacedModule):
    """A `PlacedModule` over several processes, each of which makes the same calls with the inputs of its replica.

    Parameters and buffers have data on the process that owns their device; elsewhere they are on the meta device and
    have no gradient, so that any torch optimizer updates the part here. `step` and the loss return the same value
    everywhere: the mean over the replicas. Gradients are means over the replicas too, as in training on the full batch;
    statistics of batch norm are those of a replica's own part, as in torch's DistributedDataParallel.

    A failure on one process closes its connections, which ends the call on all; the group cannot be used afterwards.
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
        super().__init__(job, plan, captured, devices, segments=segments)
        self._latest = self._primary
        self._give_up_other_parts()

    @property
    def whole(self) -> Captured:
        """The graph and executable of all processes of a replica, at the shapes of the plan."""
        assert isinstance(self._primary, RankVariant)
        return self._primary.whole

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Forward, backward and the exchange of gradients in one program, as `PlacedModule.step`."""
        with self.group.ending():
            return super().step(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The loss, as `PlacedModule.forward`; call ``backward()`` on every process."""
        with self.group.ending():
            return super().forward(*inputs, **kwargs)

    def gathered_state_dict(self) -> dict[str, Any]:
        """The plain module's state dict, put together from all processes of this replica; call it on every process."""
        self._give_up_other_parts()
        state = self.state_dict()
        here = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and not value.is_meta}
        found = {**state, **self.group.merged(here)}
        kept = ((name, found[name]) for name in state if not getattr(found[name], "is_meta", False))
        return _with_metadata(OrderedDict(kept), state)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, from the state dict of the whole model or of this process; each process takes its own part."""
        own = self.state_dict()
        mine = OrderedDict(
            (name, _emptied(value) if getattr(own.get(name), "is_meta", False) and hasattr(value, "stride") else value)
            for name, value in state_dict.items()
        )
        return super().load_state_dict(_with_metadata(mine, state_dict), strict, assign)

    @property
    def _whole(self) -> Captured:
        return self.whole

    def _of(self, job: Job, captured: Captured) -> PlacedModule:
        return type(self)(job, self.plan, captured, self.devices, self.group, segments=self.segments)

    def _differentiated(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        # Without a parameter of its own, a process takes part in the backward pass all the same: its loss must have
        # something to start from.
        return super()._differentiated(variant, tensors) or [torch.zeros((), requires_grad=True)]

    def _built(self, job: Job, captured: Captured) -> Variant:
        variant = super()._built(job, captured)
        if self._maker.is_planned_mode(job):
            self._latest = variant
            self._give_up_other_parts()
        return variant

    def _evaluate(self, called: Job) -> Any:
        found = super()._evaluate(called)
        is_loss = called.targets and called.loss is not None and isinstance(found, torch.Tensor) and not found.dim()
        if self.group.ranks.replicas == 1 or not is_loss:
            return found
        # All processes of a replica have the same loss: one gives it.
        is_first = self.group.rank == self.group.replica * self.group.ranks.per_replica
        return self.group.mean_over_replicas(found if is_first else None, found.device).to(found)

    def _draws_of_step(self, *, evaluates: bool = False) -> tuple[int, int]:
        return self.drawn_with(self.seed + seed_of(self.group.replica), evaluates)

    def _maker_of(self, job: Job) -> VariantMaker:
        return RankVariantMaker(self.group, job, self.plan, self.devices, self.updater, self.segments)

    def _give_up_other_parts(self) -> None:
        """Let go of the data of parameters and buffers that the latest step has on other processes."""
        variant = self._latest
        assert isinstance(variant, RankVariant)
        here, known = (
            {code.name for code in executable.of_role("parameter", "buffer")}
            for executable in (variant.captured.executable, variant.whole.executable)
        )
        named = (*self.named_parameters(remove_duplicate=False), *self.named_buffers(remove_duplicate=False))
        kept = {id(tensor) for name, tensor in named if name in here}
        gone = {id(tensor) for name, tensor in named if name in known and not tensor.is_meta} - kept
        emptied: dict[int, Any] = {}
        for part in self.modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None and id(tensor) in gone:
                        table[name] = emptied.setdefault(id(tensor), _emptied(tensor))


def seed_of(replica: int) -> int:
    """What a replica adds to the seed of its module: no two replicas draw the same."""
    return replica << 32


def _with_metadata(state: "OrderedDict[str, Any]", of: Mapping[str, Any]) -> "OrderedDict[str, Any]":
    """A state dict with what another one carries besides tensors: versions of modules, seeds of random ops."""
    if hasattr(of, "_metadata"):
        state._metadata = of._metadata  # type: ignore[attr-defined]
    return state


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without data, on the meta device."""
    # With the very strides, also where they have gaps: the step is captured from them, here as where the data is.
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
