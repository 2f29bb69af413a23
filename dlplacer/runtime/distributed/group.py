"""The group of processes that run a plan, joined by torch.distributed, and the transfers between them."""

import contextlib
import itertools
import logging
import os
import re
import reprlib
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError, RunError, first_line
from dlplacer.core.plan import Plan
from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.cpu import CPU
from dlplacer.runtime.devices.open import KINDS, DeviceName
from dlplacer.runtime.executor.run import AbortedError, RankLinks
from dlplacer.runtime.placed.apply import device_names
from dlplacer.runtime.program.program import Program, Send

NETWORK = "network"
"""Name of a plan's pseudo-device that runs collectives, one at a time."""

_RANKED = re.compile(r"(?:rank(?P<rank>\d+)/)?(?P<device>(?!rank)\S+)")


@dataclass(frozen=True, slots=True)
class RankedDevice:
    """A device of one process, which prints as ``rank1/cpu:0``."""

    rank: int
    device: str

    def __str__(self) -> str:
        return f"rank{self.rank}/{self.device}"


@dataclass(frozen=True)
class Ranks:
    """The owners of a plan's devices in every replica.

    `owners`: [replica] → device of the plan → the owning process and its device. A process belongs to one replica, and
    its devices share one memory.
    """

    owners: tuple[Mapping[str, RankedDevice], ...]

    @property
    def replicas(self) -> int:
        """The number of copies of the plan that run in parallel, each on its own part of the batch."""
        return len(self.owners)

    @property
    def per_replica(self) -> int:
        """The number of processes of one replica."""
        return len({owner.rank for owner in self.owners[0].values()})

    @property
    def count(self) -> int:
        """The total number of processes."""
        return self.replicas * self.per_replica

    @property
    def networks(self) -> list[str]:
        """Names of the network's parts, one per process of a replica, for the collectives of the process's devices."""
        return [f"{NETWORK}@rank{rank}" for rank in range(self.per_replica)]

    def replica_of(self, rank: int) -> int:
        """The replica of a process."""
        return rank // self.per_replica

    def rank_of(self, device: str, replica: int) -> int:
        """The process that owns a device of the plan or a part of the network."""
        if device in self.networks:
            return replica * self.per_replica + self.networks.index(device)
        return self.owners[replica][device].rank

    def network_of(self, device: str) -> str:
        """The part of the network that runs the collectives of a device of the plan."""
        return self.networks[self.rank_of(device, 0)]

    def devices_of(self, rank: int) -> dict[str, str]:
        """Device of the plan → device of this machine, for the devices of a process."""
        owners = self.owners[self.replica_of(rank)]
        return {name: owner.device for name, owner in owners.items() if owner.rank == rank}

    def peers_of(self, rank: int) -> list[int]:
        """The processes that own the same devices of the plan in every replica."""
        return list(range(rank % self.per_replica, self.count, self.per_replica))


def parse_ranks(plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int = 1) -> Ranks:
    """The owners of a plan's devices. `devices` maps these to names like ``rank0/cpu:0``, or lists the names in order.

    Devices without a rank are on consecutive ranks: the first on rank 0, the second on rank 1. A list may name the
    devices of all replicas in turn; else further replicas use the same devices on the next ranks. Raises InputError if
    a device is not named, or if a rank owns no device, devices in two memories, or devices of two replicas.
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
    """The device names with a rank added for every GPU; None if `devices` names ranks, a core, or only one GPU.

    One Python process issues the ops of all its GPUs, so several GPUs may wait for the process even if one would not.
    """
    if any(device.strip().startswith("rank") for device in devices):
        return None
    gpus = list(dict.fromkeys(map(memory_name, devices)))
    if len(gpus) < 2 or any(KINDS[DeviceName.parse(device).kind].in_host_memory for device in devices):
        return None
    return [f"rank{gpus.index(memory_name(device))}/{device.strip()}" for device in devices]


def memory_name(device: str) -> str:
    """Torch's name of a device's memory: ``cuda:0`` for ``cuda:0/1``, ``cpu`` for ``cpu:1``."""
    name = DeviceName.parse(device)
    return name.kind if KINDS[name.kind].in_host_memory else f"{name.kind}:{name.index}"


def run_as_ranks(count: int, words: Sequence[str]) -> int:
    """Run ``dlplacer`` with these arguments on every rank of a new group; return 0 or the first failure's exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    where: dict[str, Any] = {"run_id": "dlplacer", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, **where)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("torch.distributed.elastic", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # every rank prints its own error
    try:
        elastic_launch(config, sys.executable)("-m", "dlplacer", *words)
    except ChildFailedError as error:
        return max(1, error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


MOST_DIMENSIONS = 64
"""The limit of torch's element-wise ops."""
HEADER_LENGTH = 2 + 2 * MOST_DIMENSIONS
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class WireFormat:
    """Shape, strides and dtype of a message; `dtype` is None if the message carries only an order."""

    dtype: torch.dtype | None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements sent; 1, a byte, if the message carries only an order."""
        return 1 if self.dtype is None else int(torch.Size(self.shape).numel())

    def to_header(self, device: torch.device) -> torch.Tensor:
        """The format as integers."""
        dtype = _NOTHING if self.dtype is None else _DTYPES.index(self.dtype)
        numbers = [dtype, len(self.shape), *self.shape, *self.strides]
        return torch.tensor([*numbers, *[0] * (HEADER_LENGTH - len(numbers))], device=device)

    @classmethod
    def of_header(cls, header: torch.Tensor) -> "WireFormat":
        """The format from the integers of `to_header`."""
        dtype, count, *rest = header.tolist()
        return cls(None if dtype == _NOTHING else _DTYPES[dtype], tuple(rest[:count]), tuple(rest[count : 2 * count]))

    @classmethod
    def of(cls, value: Any) -> "WireFormat":
        """The format of a tensor, or of None. A tensor is sent without its gaps or repeats in memory."""
        if value is None:
            return cls(None)
        strides = value.stride()
        by_stride = sorted(range(value.dim()), key=lambda dimension: -strides[dimension])
        if not value.permute(by_stride).is_contiguous():
            strides = torch.empty(value.shape, device="meta").stride()
        return cls(value.dtype, tuple(value.shape), tuple(strides))

    def flat(self, value: Any, device: torch.device | None = None) -> torch.Tensor:
        """The bytes of a tensor in this format, copied only if its layout differs; one byte on `device` for None."""
        if self.dtype is None:
            return torch.zeros(1, dtype=torch.uint8, device=device)
        if value.stride() != self.strides or value.is_conj() or value.is_neg():
            laid_out = self.empty(value.device)
            self.shaped(laid_out).copy_(value)
            return laid_out
        flat: torch.Tensor = value.as_strided((self.elements,), (1,)).view(torch.uint8)
        return flat

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory for the bytes of a message."""
        return torch.empty(self.elements, dtype=self.dtype or torch.uint8, device=device).view(torch.uint8)

    def shaped(self, flat: torch.Tensor) -> Any:
        """The tensor with these bytes, or None."""
        return None if self.dtype is None else flat.view(self.dtype).as_strided(self.shape, self.strides)


DEFAULT_TIMEOUT_S = 120.0


class RankGroup:
    """A process's membership in the group of processes that run a plan; all processes create it at the same time.

    If the group is `on_device`, tensors pass from GPU to GPU, else through the host's memory. `peers` is the process
    group of the owners of the same devices in every replica. `programs` counts the group's programs, which all
    processes create in the same order.
    """

    def __init__(self, ranks: Ranks, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s}; it must be positive")
        self.ranks, self.timeout_s, self.programs = ranks, timeout_s, itertools.count()
        self._directions: dict[tuple[str, str], Any] = {}
        self._failing = threading.Lock()
        owned = [DeviceName.parse(owner.device) for owners in ranks.owners for owner in owners.values()]
        for name in owned:
            if not KINDS[name.kind].count():
                raise InputError(f"device {name} is not here: torch sees no {name.kind.upper()}; use rank0/cpu:0, …")
        self.on_device = not any(KINDS[name.kind].in_host_memory for name in owned)
        backends = {kind: KINDS[kind].collectives for kind in (CPU.torch_type, *(name.kind for name in owned))}
        self._join(",".join(f"{kind}:{backend}" for kind, backend in backends.items()))
        self.rank, count = dist.get_rank(), dist.get_world_size()
        if count != ranks.count:
            raise InputError(
                f"the plan needs {ranks.count} processes ({ranks.replicas} replicas of {ranks.per_replica}); {count} "
                f"were started: use torchrun --nproc-per-node {ranks.count}, or name other ranks"
            )
        self.replica = ranks.replica_of(self.rank)
        self.peers = self._joined(*ranks.peers_of(self.rank)) if ranks.replicas > 1 else None
        # Not the group that compares settings: ranks with different calls then wait, instead of mixing messages.
        self._losses = self._joined(*range(count)) if count > 1 else None

    def rank_of(self, device: str) -> int:
        """The owner of a device of the plan in this replica; see `Ranks.rank_of`."""
        return self.ranks.rank_of(device, self.replica)

    def direction(self, ends: tuple[str, str]) -> Any:
        """The process group that carries tensors from one connected device to another."""
        if self._failing.locked():
            raise AbortedError
        return self._directions[ends]

    def connect(self, ends: tuple[str, str], memory: torch.device) -> None:
        """Connect two devices in one direction; both processes must connect devices in the same order."""
        if ends not in self._directions:
            sender, receiver = map(self.rank_of, ends)
            self._directions[ends] = direction = self._joined(*sorted((sender, receiver)))
            # NCCL connects when the first tensor is sent, and blocks its caller meanwhile.
            move, peer = (dist.send, receiver) if sender == self.rank else (dist.recv, sender)
            with self.waiting(f"a connection with rank {peer}"):
                move(torch.zeros(1, device=memory), peer, group=direction)

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, ordered by rank."""
        found: list[Any] = [None] * self.ranks.count
        with self.waiting("an exchange of settings with all ranks"):
            dist.all_gather_object(found, value)
        return found

    def merged(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Name → tensor, from all processes of this replica; tensors of other processes are in the host's memory."""
        found: dict[str, torch.Tensor] = {}
        for rank, formats in enumerate(self.gathered({name: WireFormat.of(own) for name, own in tensors.items()})):
            for name, wire in formats.items():
                is_mine = rank == self.rank
                flat = wire.flat(tensors[name].detach().to(HOST_DEVICE)) if is_mine else wire.empty(HOST_DEVICE)
                if wire.elements:
                    with self.waiting(f"{name!r} of rank {rank}"):
                        dist.broadcast(flat, rank)
                if self.ranks.replica_of(rank) == self.replica:
                    found[name] = wire.shaped(flat)
        return {**found, **tensors}

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError, naming ranks and setting, on all processes if two differ in a setting that both have."""
        seen: dict[str, tuple[int, Any]] = {}
        for rank, theirs in enumerate(self.gathered(dict(settings))):
            for name, value in theirs.items():
                other, known = seen.setdefault(name, (rank, value))
                if known != value:
                    raise InputError(
                        f"rank {other} and rank {rank} differ in {name}: {reprlib.repr(known)} against "
                        f"{reprlib.repr(value)}; start all ranks with the same model, weights, plan and options"
                    )

    def mean_over_replicas(self, value: torch.Tensor | None, memory: torch.device) -> torch.Tensor:
        """The mean, in `memory`, of a number that one process of every replica holds; on a GPU it is only enqueued."""
        total = torch.zeros((), dtype=torch.float64, device=memory)
        if value is not None:
            total += value.detach().to(total).reshape(())
        if self._losses is not None:
            with self.waiting("the loss of all ranks"):
                dist.all_reduce(total, group=self._losses)
        return total / self.ranks.replicas

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """A context for calls of torch.distributed: an error becomes a `RunError` that names the missing message."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self._failing.locked():
                raise AbortedError from error
            reason = re.sub(r"^\[\S*\] ", "", first_line(error)).partition(". This is typ")[0]
            raise RunError(
                f"rank {self.rank} did not get {what}: {reason}; a rank has ended, is stuck or did not take this step: "
                f"see its error, or raise the timeout of {self.timeout_s:g} s"
            ) from error

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """A context for calls that all processes make: any error in it except InputError ends the group."""
        if self._failing.locked():
            raise RunError(f"the run over ranks has already failed on rank {self.rank}; start all ranks again")
        try:
            yield
        except InputError:
            raise
        except BaseException:
            self.fail()
            raise

    def fail(self) -> None:
        """Close all connections, so that waiting threads here and waiting processes elsewhere stop."""
        if self._failing.acquire(blocking=False) and dist.is_initialized():
            # Abort for NCCL: a GPU that waits for another one would block all later work. Gloo closes a connection when
            # nothing refers to it.
            for group in (*self._directions.values(), self.peers, self._losses, dist.group.WORLD):
                if group is not None:
                    group.abort()
            del group
            self._directions.clear()
            self.peers = self._losses = None
            dist.destroy_process_group()

    def _joined(self, *members: int) -> Any:
        with self.waiting(f"a connection of ranks {members}"):
            return dist.new_group(
                list(members), timeout=timedelta(seconds=self.timeout_s), use_local_synchronization=True
            )

    def _join(self, backend: str) -> None:
        """Join the group that torchrun describes in the environment, unless the caller has already joined one."""
        if dist.is_initialized():
            return
        if "RANK" not in os.environ:
            raise InputError(
                "RANK is not set: a plan over several ranks needs its processes started, by torchrun "
                "--nproc-per-node N, or call torch.distributed.init_process_group first"
            )
        self.rank = int(os.environ["RANK"])
        with self.waiting(f"a group of {os.environ.get('WORLD_SIZE')} ranks"):
            dist.init_process_group(backend, timeout=timedelta(seconds=self.timeout_s))


AHEAD = 2
"""Pending receives per channel: each occupies memory, and on a GPU multiprocessors, until its tensor arrives."""


@dataclass
class _Channel:
    """One end of a channel between two devices; only the thread of this process's device uses it.

    `tensors` are in the order of sending. Every program has a `tag`: with gloo, messages of different tags never match.
    In the first run, a header precedes each tensor; afterwards both ends know the formats.
    """

    group: RankGroup
    ends: tuple[str, str]
    peer: int
    named: str
    tag: int
    memory: torch.device
    tensors: tuple[str, ...]
    formats: dict[str, WireFormat] = field(default_factory=dict)
    under_way: deque[tuple[Any, torch.Tensor]] = field(default_factory=deque)
    arrived: dict[str, Any] = field(default_factory=dict)
    taken: int = 0

    def send(self, tensor: str, value: Any) -> None:
        """Start to send a tensor; its memory is kept until it is sent."""
        while self.under_way and self.under_way[0][0] and self.under_way[0][0].is_completed():
            self.under_way.popleft()
        if tensor not in self.formats:
            self.formats[tensor] = WireFormat.of(value)
            self._start(dist.isend, tensor, self.formats[tensor].to_header(self.memory))
        self._start(dist.isend, tensor, self.formats[tensor].flat(value, self.memory))

    def expect(self) -> None:
        """Start to receive the next tensors, if their formats are known."""
        for tensor in self.tensors[self.taken + len(self.under_way) : self.taken + AHEAD]:
            if tensor not in self.formats:
                return
            self._start(dist.irecv, tensor, self.formats[tensor].empty(self.memory))

    def receive(self, tensor: str) -> Any:
        """Wait for a tensor, and for all tensors sent before it."""
        while tensor not in self.arrived:
            name = self.tensors[self.taken]
            if not self.under_way:
                if name not in self.formats:
                    self._start(dist.irecv, name, torch.empty(HEADER_LENGTH, dtype=torch.int64, device=self.memory))
                    self.formats[name] = WireFormat.of_header(self._finished(name))
                self._start(dist.irecv, name, self.formats[name].empty(self.memory))
            self.arrived[name] = self.formats[name].shaped(self._finished(name))
            self.taken += 1
            self.expect()
        return self.arrived.pop(tensor)

    def finish(self) -> None:
        """Wait until all tensors are sent."""
        while self.under_way:
            self._finished("all tensors")

    def _start(self, move: Any, tensor: str, flat: torch.Tensor) -> None:
        with self.group.waiting(f"tensor {tensor!r} {self.named}"):
            # An empty tensor is not sent.
            group = self.group.direction(self.ends)
            work = move(flat, self.peer, group=group, tag=self.tag) if flat.numel() else None
        self.under_way.append((work, flat))

    def _finished(self, tensor: str) -> torch.Tensor:
        # No local name for the work: an error's traceback would keep it, and thereby the connection, alive.
        if self.under_way[0][0] is not None:
            with self.group.waiting(f"tensor {tensor!r} {self.named}"):
                self.under_way[0][0].wait()
        return self.under_way.popleft()[1]


class RankChannels(RankLinks):
    """The `RankLinks` of a program for the devices of this process, over the process groups of a `RankGroup`."""

    def __init__(self, program: Program, group: RankGroup, devices: Mapping[str, RuntimeDevice]) -> None:
        self._group = group
        self._incoming: dict[str, dict[str, _Channel]] = {name: {} for name in devices}
        self._outgoing: dict[str, dict[str, _Channel]] = {name: {} for name in devices}
        tag = next(group.programs)
        # The same order on all processes: both ends of a channel must connect at the same time.
        for (source, target), tensors in sorted(crossing(program, group).items()):
            sends = source in devices
            if sends or target in devices:
                here, away = (source, target) if sends else (target, source)
                memory = devices[here].torch_device if group.on_device else HOST_DEVICE
                peer = group.rank_of(away)
                named = f"{'to' if sends else 'from'} {away!r} on rank {peer}"
                group.connect((source, target), memory)
                table = self._outgoing if sends else self._incoming
                table[here][away] = _Channel(group, (source, target), peer, named, tag, memory, tensors)

    def begin(self, device: str) -> None:
        """Before a run: start to receive the first tensors."""
        for channel in self._incoming[device].values():
            channel.taken = 0
            channel.expect()

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start to send a tensor."""
        self._outgoing[source][target].send(tensor, value)

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Receive a tensor: into the host's memory, this thread waits for it; on a GPU, the current stream waits."""
        return self._incoming[target][source].receive(tensor)

    def end(self, device: str) -> None:
        """Wait until all tensors are sent, so that their memory may be reused."""
        for channel in self._outgoing[device].values():
            channel.finish()

    def fail(self) -> None:
        """End the run in all processes."""
        for channels in (*self._incoming.values(), *self._outgoing.values()):
            for channel in channels.values():
                channel.under_way.clear()
        self._group.fail()


def crossing(program: Program, group: RankGroup) -> dict[tuple[str, str], tuple[str, ...]]:
    """(source, target) → the tensors sent between devices of different processes, in the program's order."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, actions in program.actions.items():
        for action in actions:
            if isinstance(action, Send) and group.rank_of(source) != group.rank_of(action.target):
                found[source, action.target].append(action.tensor)
    return {ends: tuple(tensors) for ends, tensors in found.items()}
