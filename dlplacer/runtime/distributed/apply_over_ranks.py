"""The front door of running a plan over several processes."""

import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dlplacer.check import check_plan
from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan
from dlplacer.core.version import __version__
from dlplacer.files import plan_to_dict
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import HostDevice
from dlplacer.runtime.devices.open import kind_of, open_devices
from dlplacer.runtime.distributed.collective_ops import with_collectives
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S, RankGroup
from dlplacer.runtime.distributed.rank_module import RankModule
from dlplacer.runtime.distributed.ranks import NETWORK, parse_ranks
from dlplacer.runtime.executor.backends import segment_backend
from dlplacer.runtime.placed.apply import capture_as_planned, of_captured_ops, require_captured, require_runnable
from dlplacer.runtime.placed.guards import has_data, require_unscaled_updates


def apply_ranks(
    job: Job,
    plan: Plan,
    devices: Mapping[str, str] | Sequence[str],
    *,
    replicas: int = 1,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    segments: str = "eager",
) -> RankModule:
    """The job's module, running as planned over several processes. Call it on all of them, with the same weights.

    Parameters
    ----------
    job
        The job that the plan was captured from, with the inputs of this process's replica.
    devices
        Device of the plan → ``rank0/cpu:0``, or a list in the plan's order; see
        `dlplacer.runtime.distributed.ranks`.
    replicas
        How often the plan runs side by side; more than one needs a plan with collectives
        (`dlplacer.runtime.distributed.replicated_plan`).
    timeout_s
        How long to wait for another process.
    segments
        As in `dlplacer.apply`, whose errors are raised too.

    Raises
    ------
    InputError
        If the number of processes is another, or they differ in plan, versions, inputs, weights or settings.
    """
    segment_backend(segments)
    check_plan(plan)
    require_unscaled_updates(job)
    require_captured(plan)
    require_replicas(plan, replicas)
    with opened_group(plan, devices, replicas, timeout_s) as (group, opened):
        return apply_in_group(job, plan, group, opened, segments)


def require_replicas(plan: Plan, replicas: int) -> None:
    """Raise MismatchError unless a plan exchanges gradients between this number of replicas."""
    planned = (plan.graph.capture or {}).get("collectives", {}).get("replicas", 1)
    if planned != replicas:
        raise MismatchError(
            f"the plan was made for {planned} replicas, and {replicas} are to run; make one with "
            "dlplacer.runtime.distributed.replicated_plan, from the plan of one replica"
        )


@contextlib.contextmanager
def opened_group(
    plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int, timeout_s: float
) -> Iterator[tuple[RankGroup, dict[str, RuntimeDevice]]]:
    """The group of processes that run a plan, and device of the plan → device, for those that this process owns.

    They outlive the context, unless an error leaves it.
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
    """As `apply_ranks`, for a group and its devices."""
    group.require_same(settings_of(job, plan, group))
    captured = with_collectives(capture_as_planned(job, plan), plan)
    planned = of_captured_ops(plan, captured.graph)
    require_runnable(captured, planned, opened)
    devices = dict(opened)
    if group.ranks.replicas > 1:
        # A thread for collectives: free to run on any core, or with a stream of its own on this process's GPU.
        here = next(iter(opened.values())).torch_device
        is_host = kind_of(here).in_host_memory
        network = group.ranks.network_of(next(iter(opened)))
        devices[network] = HostDevice(NETWORK, NETWORK) if is_host else kind_of(here).open(here.index or 0)
    return RankModule(job, planned, captured, devices, group, segments=segments)


def settings_of(job: Job, plan: Plan, group: RankGroup) -> dict[str, Any]:
    """What processes must have in common before the first step, in the order in which a difference is named.

    Parameters are the same on all; buffers in a replica, as batch norm has statistics of its own in each.
    """
    values: dict[str, torch.Tensor] = {f"the values of {name!r}": one for name, one in job.module.named_parameters()}
    values |= {f"the values of {name!r} in replica {group.replica}": one for name, one in job.module.named_buffers()}
    return {
        "version of dlplacer": __version__,
        "version of torch": str(torch.__version__),
        "order": dict(plan.order),
        "plan file": hashlib.sha256(json.dumps(plan_to_dict(plan), sort_keys=True).encode()).hexdigest(),
        "replicas": group.ranks.replicas,
        "inputs": [_described(leaf) for leaf in flat_inputs(job)],
        "trained parameters": [name for name, one in job.module.named_parameters() if one.requires_grad],
        "mode": job.mode,
        "optimizer": repr(job.update),
        "autocast": repr(job.autocast),
        **{name: _checksum(one) for name, one in values.items() if has_data(one) and not hasattr(one, "full_tensor")},
    }


def _described(leaf: Any) -> str:
    """An input in a word or two: shape and dtype of a tensor, a number or a text itself."""
    return f"{list(leaf.shape)} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def _checksum(tensor: torch.Tensor) -> int:
    """A checksum of a tensor's elements, in their order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data) if plain.numel() else 0
