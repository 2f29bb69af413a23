"""A module of which every process holds and runs its part."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dlplacer.core.errors import InputError, MismatchError, RunError
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.collective_ops import with_collectives, with_group
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.rank_variant import RankVariant, local_part
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.distributed.same_call import require_same_call
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.placed.variant import Layouts, Variant
from dlplacer.runtime.program.lower import Order


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
        cuda_graphs: str = "off",
    ) -> None:
        self.group = group
        super().__init__(job, plan, captured, devices, cuda_graphs=cuda_graphs)
        self.seed = seed_of(group.replica)
        self._give_up_other_parts()

    @property
    def whole(self) -> Captured:
        """The graph and executable of all processes of a replica, at the shapes of the plan."""
        assert isinstance(self._primary, RankVariant)
        return self._primary.whole

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Forward, backward and the exchange of gradients in one program, as `PlacedModule.step`."""
        with self._telling():
            return super().step(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The loss, as `PlacedModule.forward`; call ``backward()`` on every process."""
        if self.training and torch.is_grad_enabled() and not self._primary.captured.executable.of_role("gradient"):
            raise InputError(
                f"rank {self.group.rank} holds no parameter, so that backward() has nothing to start from; use step()"
            )
        with self._telling():
            return super().forward(*inputs, **kwargs)

    def close(self) -> None:
        """End the devices' and channels' threads; the module cannot run afterwards."""
        super().close()
        self.group.close()

    def gathered_state_dict(self) -> dict[str, torch.Tensor]:
        """The plain module's state dict, put together from all processes of this replica; call it on every process."""
        state = self.state_dict()
        found = self.group.merged({name: tensor for name, tensor in state.items() if not tensor.is_meta})
        return {name: found[name] for name in state if name in found}

    @property
    def _whole(self) -> Captured:
        return self.whole

    def _of(self, job: Job, captured: Captured) -> PlacedModule:
        return type(self)(job, self.plan, captured, self.devices, self.group, cuda_graphs=self.cuda_graphs)

    def _variant(self, job: Job) -> tuple[Variant, Mapping[str, torch.Tensor]]:
        edition, snapshot = self._editions.current()
        require_same_call(self.group, job, snapshot.trained)
        return self._variants.find(edition, job), snapshot.tensors

    def _capture(self, job: Job) -> Captured:
        captured = super()._capture(job)
        if job.mode != "train":
            return captured
        if self.group.ranks.replicas > 1:
            self._require_exchanged(captured)
        return with_collectives(captured, self.plan)

    def _require_exchanged(self, captured: Captured) -> None:
        """Return if the plan exchanges the gradients that there are."""
        before = {code.name for code in self.whole.executable.of_role("gradient", "update")}
        now = {code.name for code in captured.executable.of_role("gradient", "update")}
        for name in sorted(before ^ now):
            raise MismatchError(
                f"{name!r} was {'frozen' if name in before else 'unfrozen or added'} after the plan was applied, which "
                "exchanges the gradients of other parameters between its replicas; make a plan for this module with "
                "replicated_plan, and apply it"
            )

    def _variant_of(self, captured: Captured, order: Order, layouts: Layouts) -> Variant:
        order = per_rank(order, self.plan, self.group)
        part = local_part(captured, order, self.group)
        bound = replace(part, executable=with_group(part.executable, self.group))
        return RankVariant(
            bound, order, self.devices, self.updater, layouts, self.group, captured, cuda_graphs=self.cuda_graphs
        )

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """What ends a step here ends it on all processes. A mistaken call does not: nothing has been sent for it."""
        try:
            yield
        except InputError:
            raise
        except RunError as error:
            raise self.group.failure.fail(error) from error
        except BaseException as error:
            self.group.failure.fail(error)
            raise

    def _give_up_other_parts(self) -> None:
        """Let go of the data of parameters and buffers that live on other processes."""
        here = {code.name for code in self._primary.captured.executable.of_role("parameter", "buffer")}
        named = (*self.named_parameters(remove_duplicate=False), *self.named_buffers(remove_duplicate=False))
        kept = {id(tensor) for name, tensor in named if name in here}
        known = {code.name for code in self.whole.executable.of_role("parameter", "buffer")}
        gone = {id(tensor) for name, tensor in named if name in known} - kept
        emptied: dict[int, Any] = {}
        for module in self.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None and id(tensor) in gone:
                        table[name] = emptied.setdefault(id(tensor), _emptied(tensor))


def seed_of(replica: int) -> int:
    """The seed of a replica's random ops: no two replicas draw the same."""
    return replica << 32


def per_rank(order: Order, plan: Plan, group: RankGroup) -> Order:
    """The order with the network split: every process runs the collectives of its own devices, in the plan's order."""
    found: dict[str, list[str]] = {name: list(ops) for name, ops in order.items() if name != NETWORK}
    if group.ranks.replicas > 1:
        found.update({name: [] for part in range(group.ranks.per_replica) for name in group.ranks.networks(part)})
    for op in order.get(NETWORK, ()):
        found[group.ranks.network_of(plan.graph.op(op).attrs["device"])].append(op)
    return found


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
