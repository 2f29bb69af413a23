"""The front door of running a plan over several processes."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dlplacer.check import check_plan
from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.plan import Plan
from dlplacer.core.version import __version__
from dlplacer.files import plan_to_dict
from dlplacer.files.structure_hash import structure_sha256
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import HostDevice
from dlplacer.runtime.devices.open import kind_of, open_devices
from dlplacer.runtime.distributed.collective_ops import with_collectives
from dlplacer.runtime.distributed.group import DEFAULT_TIMEOUT_S, RankGroup
from dlplacer.runtime.distributed.rank_module import RankModule
from dlplacer.runtime.distributed.ranks import NETWORK, parse_ranks
from dlplacer.runtime.distributed.same_call import described
from dlplacer.runtime.distributed.same_values import require_same_values
from dlplacer.runtime.executor.backends import segment_backend
from dlplacer.runtime.placed.apply import capture_as_planned, of_captured_ops, require_captured, require_runnable
from dlplacer.runtime.placed.guards import require_unscaled_updates


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
        As in `dlplacer.apply`.

    Raises
    ------
    CheckError
        If the plan breaks a rule.
    MismatchError
        If the plan was made for another graph or number of replicas.
    InputError
        If a device is missing or not here, the number of processes is another, or processes differ in plan, versions,
        inputs or settings.
    InternalError
        If the joined programs would hang.
    """
    segment_backend(segments)
    check_plan(plan)
    require_unscaled_updates(job)
    require_captured(plan)
    require_replicas(plan, replicas)
    with opened_group(plan, devices, replicas, timeout_s) as (group, opened):
        return apply_in_group(job, plan, group, opened, segments)


def require_replicas(plan: Plan, replicas: int) -> None:
    """Return if a plan exchanges gradients between this number of replicas.

    Raises
    ------
    MismatchError
        If it was made for another number.
    """
    planned = (plan.graph.capture or {}).get("collectives", {}).get("replicas", 1)
    if planned != replicas:
        raise MismatchError(
            f"the plan was made for {planned} replicas, and {replicas} are to run; make one with "
            "dlplacer.runtime.distributed.replicated_plan, from the plan of one replica"
        )


def open_local(group: RankGroup) -> dict[str, RuntimeDevice]:
    """Device of the plan → device, for those that this process owns."""
    names = group.ranks.devices_of(group.rank)
    return dict(zip(names, open_devices(list(names.values())), strict=True))


@contextlib.contextmanager
def opened_group(
    plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int, timeout_s: float
) -> Iterator[tuple[RankGroup, dict[str, RuntimeDevice]]]:
    """The group of processes that run a plan, and device of the plan → device, for those that this process owns.

    They outlive the context, unless an error leaves it: then they are closed, and the run ends on the other processes
    too; those find a mistake in what was given (`InputError`) on their own.
    """
    group = RankGroup(parse_ranks(plan, devices, replicas), timeout_s)
    opened: dict[str, RuntimeDevice] = {}
    try:
        opened.update(group.agreed(lambda: open_local(group)))
        yield group, opened
    except BaseException as error:
        if not isinstance(error, InputError):
            group.failure.fail(error)
        for device in opened.values():
            device.close()
        group.close()
        raise


def apply_in_group(
    job: Job, plan: Plan, group: RankGroup, opened: Mapping[str, RuntimeDevice], segments: str = "eager"
) -> RankModule:
    """As `apply_ranks`, for a group and its devices."""
    replicas = group.ranks.replicas
    group.require_same(settings_of(job, plan, replicas))
    require_same_values(group, job.module)
    captured, plan = group.agreed(lambda: _captured(job, plan, opened))
    devices = dict(opened)
    if replicas > 1:
        parts = group.ranks.networks(group.rank % group.ranks.per_replica)
        devices |= {name: _network(opened[neighbour]) for name, neighbour in parts.items()}
    return RankModule(job, plan, captured, devices, group, segments=segments)


def settings_of(job: Job, plan: Plan, replicas: int) -> dict[str, Any]:
    """What all processes must have in common before the first step, in the order in which a difference is named."""
    leaves = flat_inputs(job)
    return {
        "version of dlplacer": __version__,
        "version of torch": str(torch.__version__),
        "plan": structure_sha256(plan.graph),
        "order": dict(plan.order),
        "plan file": plan_sha256(plan),
        "replicas": replicas,
        "inputs": [described(leaf) for leaf in leaves],
        "trained parameters": [name for name, one in job.module.named_parameters() if one.requires_grad],
        "mode": job.mode,
        "optimizer": repr(job.update),
        "autocast": job.autocast,
    }


def plan_sha256(plan: Plan) -> str:
    """A digest of all that a plan says."""
    return hashlib.sha256(json.dumps(plan_to_dict(plan), sort_keys=True).encode()).hexdigest()


def _captured(job: Job, plan: Plan, opened: Mapping[str, RuntimeDevice]) -> tuple[Captured, Plan]:
    """The job with the plan's rewrites and collectives, and the plan in its ops."""
    captured = with_collectives(capture_as_planned(job, plan), plan)
    own = of_captured_ops(plan, captured.graph)
    require_runnable(captured, own, opened)
    return captured, own


def _network(neighbour: RuntimeDevice) -> RuntimeDevice:
    """A thread for collectives: free to run on any core, or on the neighbour's GPU with a stream of its own there."""
    here = neighbour.torch_device
    return HostDevice(NETWORK, NETWORK) if kind_of(here).in_host_memory else kind_of(here).open(here.index or 0)
