"""A placed module over several processes; each holds and runs the part of its own devices."""

import contextlib
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan
from dlplacer.core.version import __version__
from dlplacer.files.formats import plan_to_dict
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.stand_in import is_empty
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.open import kind_of, open_devices
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S, NETWORK, RankChannels, RankGroup, parse_ranks
from dlplacer.runtime.distributed.replicate import with_collectives, with_group
from dlplacer.runtime.executor.run import StepState
from dlplacer.runtime.placed.apply import capture_as_planned, of_captured_ops, require_applicable, require_runnable
from dlplacer.runtime.placed.placed_module import ModuleSnapshot, PlacedModule
from dlplacer.runtime.placed.variant import Layouts, Variant, part_of, with_constants
from dlplacer.runtime.program.program import Compute, Order, Program, Send


@dataclass(frozen=True)
class RankVariant(Variant):
    """A `Variant` of which this process runs one part; `whole` has the code of the ops of all processes."""

    whole: Captured
    group: RankGroup

    @cached_property
    def is_random(self) -> bool:
        """True if an op of any process draws random numbers; every process then draws the step's seed from torch."""
        return any(code.random for code in self.whole.executable.codes.values())

    def outputs(self, state: StepState) -> list[Any]:
        """The mean loss over the replicas, or the outputs of inference; the same on every process of a replica."""
        local = super().outputs(state)
        executable = self.whole.executable
        if executable.trains:
            spec = self.whole.graph.op(executable.producer[executable.outputs[0]]).outputs[0]
            memory = next(iter(self.devices.values())).torch_device if self.away_on_device else HOST_DEVICE
            loss = self.group.mean_over_replicas(local[0] if local else None, memory)
            return [loss.to(getattr(torch, spec.dtype)).reshape(spec.shape)]
        found = self.group.merged(dict(zip(self.captured.executable.outputs, local, strict=True)))
        return with_constants(executable, [found[name] for name in executable.outputs])


class RankModule(PlacedModule):
    """A `PlacedModule` over several processes, which all make the same calls, each with the inputs of its replica.

    Parameters and buffers have data only on the process that owns their device. Elsewhere they are on the meta device
    and have no gradient, so any torch optimizer updates only the local part. `step` and `forward` return the mean loss
    over the replicas on every process. Gradients are means over the replicas too, like those of the full batch. Each
    replica has its own batch norm statistics, as with torch's DistributedDataParallel.

    A failure on one process closes its connections and ends the call on all; the group cannot be used afterwards.
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
    def captured(self) -> Captured:
        """Graph and executable of a replica's whole step, at the plan's shapes; collectives have no process group."""
        assert isinstance(self._primary, RankVariant)
        return self._primary.whole

    def step(self, *inputs: Any, **kwargs: Any) -> torch.Tensor:
        """Like `PlacedModule.step`, with the exchange of gradients in the same program."""
        with self.group.ending():
            return super().step(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Like `PlacedModule.forward`; call ``backward()`` of the loss on every process."""
        with self.group.ending():
            return super().forward(*inputs, **kwargs)

    def gathered_state_dict(self) -> dict[str, Any]:
        """The plain module's state dict, gathered from all processes of this replica; call it on every process."""
        self._give_up_other_parts()
        state = self.state_dict()
        here = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and not value.is_meta}
        found = {**state, **self.group.merged(here)}
        kept = ((name, found[name]) for name in state if not getattr(found[name], "is_meta", False))
        return _with_metadata(OrderedDict(kept), state)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Like torch's, with a state dict of the whole model or of this process; a process loads only its own part."""
        own = self.state_dict()
        mine = OrderedDict(
            (name, _emptied(value) if getattr(own.get(name), "is_meta", False) and hasattr(value, "stride") else value)
            for name, value in state_dict.items()
        )
        return super().load_state_dict(_with_metadata(mine, state_dict), strict, assign)

    def _differentiated(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        # A process without parameters takes part in the backward pass too: its loss must depend on a differentiable
        # tensor.
        return super()._differentiated(variant, tensors) or [torch.zeros((), requires_grad=True)]

    def _capture(self, job: Job) -> Captured:
        """Like `PlacedModule._capture`, with the plan's collectives in training."""
        captured = super()._capture(job)
        if job.mode != "train" or self.group.ranks.replicas == 1:
            return captured
        buckets = (self.plan.graph.capture or {})["collectives"]["buckets"]
        before = {name for bucket in buckets for name in bucket["parameters"]}
        now = {code.name for code in captured.executable.of_role("gradient", "update")}
        for name in sorted(before ^ now):
            raise MismatchError(
                f"{name!r} was {'frozen' if name in before else 'unfrozen or added'} after the plan was applied; the "
                "plan exchanges other gradients between its replicas: make a plan for this module with "
                "replicated_plan, and apply it"
            )
        return with_collectives(captured, self.plan)

    def _variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """This process's variant of a captured step in an order."""
        group, order = self.group, self._per_rank(order)
        here = {op for device, ops in order.items() if group.rank_of(device) == group.rank for op in ops}
        part = part_of(captured, here)
        part = replace(part, executable=with_group(part.executable, group))

        devices = self.devices

        def links(program: Program) -> RankChannels:
            calls = {
                name: [str(action) for action in own if isinstance(action, Compute | Send)]
                for name, own in program.actions.items()
            }
            group.require_same({"the ops of the step": (part.graph.structure_sha256, calls)})
            return RankChannels(program, group, devices)

        given = part, order, devices, self.updater, layouts, captured, group
        how: dict[str, Any] = {"segments": self.segments, "starts": self._starts}
        return RankVariant(*given, **how, links=links, away_on_device=group.on_device)

    def _per_rank(self, order: Order) -> Order:
        """The order with the network split by process; a process runs the collectives of its own devices, in order."""
        ranks = self.group.ranks
        found = {name: list(ops) for name, ops in order.items() if name != NETWORK}
        if ranks.replicas > 1:
            found |= {name: [] for name in ranks.networks}
        for op in order.get(NETWORK, ()):
            found[ranks.network_of(self.plan.graph.op(op).attrs["device"])].append(op)
        return found

    def _made(self, job: Job, state: ModuleSnapshot) -> Variant:
        variant = super()._made(job, state)
        if job.mode == self._job.mode:
            self._latest = variant
            self._give_up_other_parts()
        return variant

    def _evaluate(self, called: Job) -> Any:
        found = super()._evaluate(called)
        is_loss = called.targets and called.loss is not None and isinstance(found, torch.Tensor) and not found.dim()
        if self.group.ranks.replicas == 1 or not is_loss:
            return found
        # All processes of a replica have the same loss: only the first contributes it.
        is_first = self.group.rank == self.group.replica * self.group.ranks.per_replica
        return self.group.mean_over_replicas(found if is_first else None, found.device).to(found)

    def _drawn_seed(self, variant: Variant) -> int:
        return replica_seed(super()._drawn_seed(variant), self.group.replica)

    def _give_up_other_parts(self) -> None:
        """Free the data of the parameters and buffers that the latest step uses only on other processes."""
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


def replica_seed(step_seed: int, replica: int) -> int:
    """The seed of a replica's step; every replica has a different one."""
    return step_seed + (replica << 64)


def _with_metadata(state: "OrderedDict[str, Any]", of: Mapping[str, Any]) -> "OrderedDict[str, Any]":
    """A state dict with the metadata of another one, such as module versions."""
    if hasattr(of, "_metadata"):
        state._metadata = of._metadata  # type: ignore[attr-defined]
    return state


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without data, on the meta device."""
    # Keep the exact strides, even with gaps: every process captures the step from them.
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def apply_ranks(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    *,
    replicas: int = 1,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    segments: str = "eager",
) -> RankModule:
    """The job's module, running as planned over several processes; all must call it, with the same weights.

    The `job` has the inputs of this process's replica; for `devices` see `parse_ranks`. Two or more `replicas`
    need a plan with collectives (`dlplacer.runtime.distributed.replicated_plan`). `timeout_s`: seconds to wait for
    another process. Raises the errors of `dlplacer.apply`, and InputError if the number of processes is wrong, or if
    processes differ in plan, versions, inputs, weights or settings.
    """
    require_applicable(job, plan, segments)
    require_replicas(plan, replicas)
    with opened_group(plan, devices, replicas, timeout_s) as (group, opened):
        return apply_in_group(job, plan, group, opened, segments)


def require_replicas(plan: Plan, replicas: int) -> None:
    """Raise MismatchError unless a plan exchanges gradients between this number of replicas."""
    planned = (plan.graph.capture or {}).get("collectives", {}).get("replicas", 1)
    if planned != replicas:
        raise MismatchError(
            f"the plan was made for {planned} replicas, but {replicas} are requested; make one with "
            "dlplacer.runtime.distributed.replicated_plan, from the plan of one replica"
        )


@contextlib.contextmanager
def opened_group(
    plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int, timeout_s: float
) -> Iterator[tuple[RankGroup, dict[str, RuntimeDevice]]]:
    """The group of processes that run a plan, and device of the plan → open device, for this process's devices.

    The devices stay open after the context, unless it ends in an error.
    """
    group = RankGroup(parse_ranks(plan, devices, replicas), timeout_s)
    opened: dict[str, RuntimeDevice] = {}
    try:
        names = group.ranks.devices_of(group.rank)
        opened |= zip(names, open_devices(list(names.values())), strict=True)
        yield group, opened
    except BaseException:
        group.fail()
        for device in opened.values():
            device.close()
        raise


def apply_in_group(
    job: Job, plan: Plan, group: RankGroup, opened: Mapping[str, RuntimeDevice], segments: str = "eager"
) -> RankModule:
    """Like `apply_ranks`, with an existing group and open devices."""
    group.require_same(settings_of(job, plan, group))
    captured = with_collectives(capture_as_planned(job, plan), plan)
    planned = of_captured_ops(plan, captured.graph)
    require_runnable(captured, planned, opened)
    devices = dict(opened)
    if group.ranks.replicas > 1:
        # Collectives have their own thread, which any core may run, or their own stream on this process's GPU.
        here = next(iter(opened.values())).torch_device
        is_host = kind_of(here).in_host_memory
        network = group.ranks.network_of(next(iter(opened)))
        devices[network] = RuntimeDevice(NETWORK, NETWORK) if is_host else kind_of(here).open(here.index or 0)
    return RankModule(job, planned, captured, devices, group, segments=segments)


def settings_of(job: Job, plan: Plan, group: RankGroup) -> dict[str, Any]:
    """The settings that processes must share before the first step, in the order in which they are compared.

    All processes must have the same parameters. Only processes of one replica need the same buffers, because each
    replica has its own batch norm statistics.
    """
    values: dict[str, torch.Tensor] = {f"the values of {name!r}": one for name, one in job.module.named_parameters()}
    values |= {f"the values of {name!r} in replica {group.replica}": one for name, one in job.module.named_buffers()}
    return {
        "version of dlplacer": __version__,
        "version of torch": str(torch.__version__),
        "order": dict(plan.order),
        "plan file": hashlib.sha256(json.dumps(plan_to_dict(plan), sort_keys=True).encode()).hexdigest(),
        "replicas": group.ranks.replicas,
        "inputs": [
            f"{list(leaf.shape)} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in flat_inputs(job)
        ],
        "trained parameters": [name for name, one in job.module.named_parameters() if one.requires_grad],
        "mode, optimizer and autocast": repr((job.mode, job.update, job.autocast)),
        **{
            name: _checksum(one)
            for name, one in values.items()
            if not is_empty(one) and not hasattr(one, "full_tensor")
        },
    }


def _checksum(tensor: torch.Tensor) -> int:
    """A checksum of a tensor's elements, in order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data) if plain.numel() else 0
