"""The process that owns each device of a plan: ``{"gpu0": "rank0/cpu:0", "gpu1": "rank1/cpu:1"}``; and their start."""

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.runtime.devices.open import KINDS, DeviceName
from dlplacer.runtime.placed.apply import device_names

NETWORK = "network"
"""Name of the pseudo-device of a plan on which collectives run, one at a time."""

_RANKED = re.compile(r"(?:rank(?P<rank>\d+)/)?(?P<device>(?!rank)\S+)")


@dataclass(frozen=True, slots=True)
class RankedDevice:
    """A device of one process; it prints as ``rank1/cpu:0``."""

    rank: int
    device: str

    def __str__(self) -> str:
        return f"rank{self.rank}/{self.device}"


@dataclass(frozen=True)
class Ranks:
    """Owners of a plan's devices in every replica.

    `owners`: [replica] → device of the plan → the process and its device. A process belongs to one replica, and its
    devices share one memory.
    """

    owners: tuple[Mapping[str, RankedDevice], ...]

    @property
    def replicas(self) -> int:
        """The number of copies of the plan that run in parallel, each on its own part of the batch."""
        return len(self.owners)

    @property
    def per_replica(self) -> int:
        """Processes of one replica."""
        return len({owner.rank for owner in self.owners[0].values()})

    @property
    def count(self) -> int:
        """Processes in all."""
        return self.replicas * self.per_replica

    @property
    def networks(self) -> list[str]:
        """The parts of the network: each process of a replica runs the collectives of its own devices."""
        return [f"{NETWORK}@rank{rank}" for rank in range(self.per_replica)]

    def replica_of(self, rank: int) -> int:
        """The replica to which a process belongs."""
        return rank // self.per_replica

    def rank_of(self, device: str, replica: int) -> int:
        """The process that owns a device of the plan, or that runs the collectives of a part of the network."""
        if device in self.networks:
            return replica * self.per_replica + self.networks.index(device)
        return self.owners[replica][device].rank

    def network_of(self, device: str) -> str:
        """The part of the network on which collectives of a device of the plan run."""
        return self.networks[self.rank_of(device, 0)]

    def devices_of(self, rank: int) -> dict[str, str]:
        """Device of the plan → device of this machine, for those that a process owns."""
        owners = self.owners[self.replica_of(rank)]
        return {name: owner.device for name, owner in owners.items() if owner.rank == rank}

    def peers_of(self, rank: int) -> list[int]:
        """The processes that own the same devices of the plan in every replica."""
        return list(range(rank % self.per_replica, self.count, self.per_replica))


def parse_ranks(plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int = 1) -> Ranks:
    """Owners of a plan's devices.

    Parameters
    ----------
    devices
        Device of the plan → ``rank0/cpu:0``, or a list in the plan's order. A name without rank counts up: the first
        device on rank 0, the second on rank 1. A list may also name the devices of all replicas, one after another;
        else the further replicas have the same devices on the ranks that follow.

    Raises
    ------
    InputError
        If a device is not named, a rank owns none or devices of several memories, or belongs to two replicas.
    """
    if replicas < 1:
        raise InputError(f"replicas is {replicas}; it must be at least 1")
    planned = [device.id for device in plan.topology.devices if device.id != NETWORK]
    if isinstance(devices, str):
        devices = devices.split(",")
    if isinstance(devices, Mapping) or len(devices) != replicas * len(planned):
        given = [device_names(plan, devices, planned)] * replicas
    else:
        cuts = range(0, len(devices), len(planned))
        given = [dict(zip(planned, devices[first : first + len(planned)], strict=True)) for first in cuts]
    owners, per_replica = [], 0
    for replica, names in enumerate(given):
        found = {}
        for place, (name, text) in enumerate(names.items()):
            match = _RANKED.fullmatch(text.strip())
            if match is None:
                raise InputError(f"device {text!r} is not understood; write rank0/cpu:0, rank1/cuda:0, …")
            found[name] = RankedDevice(place if match["rank"] is None else int(match["rank"]), match["device"])
        used = {owner.rank for owner in found.values()}
        per_replica = per_replica or len(used)
        wanted = set(range(replica * per_replica, (replica + 1) * per_replica))
        if min(used) == 0:
            found = {name: RankedDevice(owner.rank + min(wanted), owner.device) for name, owner in found.items()}
            used = {owner.rank for owner in found.values()}
        if used != wanted:
            there, here = (", ".join(map(str, sorted(ranks))) for ranks in (used, wanted))
            raise InputError(
                f"the devices of replica {replica} are on ranks {there}; they must be on ranks {here}, with at least "
                "one device on each"
            )
        for rank in used:
            own = [owner.device for owner in found.values() if owner.rank == rank]
            if len(set(map(memory_name, own))) > 1:
                raise InputError(
                    f"rank {rank} owns {' and '.join(own)}; give every GPU, and the host, a rank of its own"
                )
        owners.append(found)
    return Ranks(tuple(owners))


def rank_per_gpu(devices: Sequence[str]) -> list[str] | None:
    """The devices with a process for every GPU; None unless they are on several GPUs, and named without ranks.

    One Python process issues the ops of all its GPUs: several GPUs wait for it where one would not.
    """
    if any(device.strip().startswith("rank") for device in devices):
        return None
    gpus = list(dict.fromkeys(map(memory_name, devices)))
    if len(gpus) < 2 or any(KINDS[DeviceName.parse(device).kind].in_host_memory for device in devices):
        return None
    return [f"rank{gpus.index(memory_name(device))}/{device.strip()}" for device in devices]


def memory_name(device: str) -> str:
    """The memory of a device as torch names it: ``cuda:0`` of ``cuda:0/1``, ``cpu`` of ``cpu:1``."""
    name = DeviceName.parse(device)
    return name.kind if KINDS[name.kind].in_host_memory else f"{name.kind}:{name.index}"


def run_as_ranks(count: int, words: Sequence[str]) -> int:
    """Run ``dlplacer`` with these arguments on every rank of a new group; the exit code of the first that fails."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    where: dict[str, Any] = {"run_id": "dlplacer", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, **where)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # every rank prints its own error
    try:
        elastic_launch(config, sys.executable)("-m", "dlplacer", *words)
    except ChildFailedError as error:
        return max(1, error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
