"""The processes that run one plan together: who this one is, what it waits with, its channels and process groups."""

import contextlib
import itertools
import json
import os
import reprlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError, RunError, first_line
from dlplacer.runtime.devices.base import HOST_DEVICE
from dlplacer.runtime.devices.cpu import CPU
from dlplacer.runtime.devices.open import KINDS, DeviceName
from dlplacer.runtime.distributed.failure import Failure
from dlplacer.runtime.distributed.loopback import own_store
from dlplacer.runtime.distributed.messages.channel_thread import ChannelThread
from dlplacer.runtime.distributed.messages.messages import Channel
from dlplacer.runtime.distributed.messages.transport import HostTransport, NcclTransport
from dlplacer.runtime.distributed.messages.wire_format import WireFormat
from dlplacer.runtime.distributed.ranks import NETWORK, Ranks, memory_name

T = TypeVar("T")
DEFAULT_TIMEOUT_S = 120.0
HOST: Channel = ("host", "host")
"""The channel of what processes exchange outside the program."""


class RankGroup:
    """One process among those that run a plan.

    Attributes
    ----------
    rank, replica
        Of this process.
    peers
        Part of the network → process group of those that own the same devices in every replica; empty with one replica.
    callers
        None → the thread that is in a call of a module of this group; empty between calls.
    """

    def __init__(self, ranks: Ranks, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if not timeout_s > 0:
            raise InputError(f"timeout_s is {timeout_s}; it must be positive")
        self.ranks = ranks
        kinds = [KINDS[DeviceName.parse(owner.device).kind] for owners in ranks.owners for owner in owners.values()]
        others = {kind.torch_type: kind.collectives for kind in kinds if not kind.in_host_memory}
        _require_there([owner.device for owners in ranks.owners for owner in owners.values()])
        pairs = [f"{kind}:{backend}" for kind, backend in {CPU.torch_type: CPU.collectives, **others}.items()]
        _join(",".join(pairs) if others else CPU.collectives, timeout_s)
        self.rank, count = dist.get_rank(), dist.get_world_size()
        if count != ranks.count:
            raise InputError(
                f"the plan needs {ranks.count} processes ({ranks.replicas} replicas of {ranks.per_replica}); {count} "
                f"were started: use torchrun --nproc-per-node {ranks.count}, or name other ranks"
            )
        self.replica = ranks.replica_of(self.rank)
        self.peers = self._peer_groups(timeout_s) if ranks.replicas > 1 else {}
        own = next(iter(ranks.devices_of(self.rank).values()))
        through_host = any(kind.in_host_memory for kind in kinds)
        self.transport: HostTransport = (
            HostTransport() if through_host else NcclTransport(torch.device(memory_name(own)))
        )
        store: Any = dist.distributed_c10d._get_default_store()
        self.failure = Failure(self.rank, store.clone() if count > 1 else None, timeout_s, count)
        self._threads: dict[Channel, ChannelThread] = {}
        self.callers: dict[None, int] = {}
        self._modules = itertools.count()
        # Over the connections between the processes, not through the store, which anyone in reach can read.
        self.failure.watch(self.gathered(secrets.token_hex(16))[0])

    def next_module(self) -> int:
        """A number for a module on this group: all processes make theirs in the same order."""
        return next(self._modules)

    def rank_of(self, device: str) -> int:
        """The process of this replica that owns a device of the plan; see `Ranks.rank_of`."""
        return self.ranks.rank_of(device, self.replica)

    def thread(self, channel: Channel) -> ChannelThread:
        """The thread of a channel."""
        if channel not in self._threads:
            self._threads[channel] = ChannelThread(" – ".join(channel), self.failure)
        return self._threads[channel]

    def call(self, channel: Channel, what: str, work: Any) -> Any:
        """Run a blocking call on the thread of a channel, and wait for it or for the end of the run."""
        return self.failure.wait(self.thread(channel).submit(what, work), what)

    def gathered(self, value: Any) -> list[Any]:
        """What every process gives, in the order of ranks.

        It travels as JSON, so that nothing that arrives is executed: tuples come back as lists, keys as text.
        """
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)

        def gather() -> list[Any]:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks.count)]
            dist.all_gather(sizes, torch.tensor([len(text)]))
            longest = max(map(int, sizes))
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
            dist.all_gather(parts, torch.nn.functional.pad(text, (0, longest - len(text))))
            return [json.loads(part[: int(size)].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]

        found: list[Any] = self.call(HOST, "an exchange of settings", gather)
        return found

    def merged(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Name → tensor, from all processes of this replica; those of other processes are in the host's memory."""
        own = dict(tensors)
        headers = {name: WireFormat.of(tensor).to_header().tolist() for name, tensor in own.items()}
        found: dict[str, torch.Tensor] = {}
        for rank, theirs in enumerate(self.gathered(headers)):
            for name, header in theirs.items():
                wire = WireFormat.of_header(torch.tensor(header))
                tensor = self._broadcast(wire, own[name] if rank == self.rank else None, rank)
                if self.ranks.replica_of(rank) == self.replica:
                    found[name] = tensor
        return {**found, **own}

    def agreed(self, work: Callable[[], T]) -> T:
        """What a function returns that may find a mistake on one process alone; call it on every process.

        Raises
        ------
        InputError
            On all processes, if it raised one on any.
        """
        mistake = None
        try:
            found = work()
        except InputError as error:
            mistake = error
        for rank, text in enumerate(self.gathered(None if mistake is None else str(mistake))):
            if text is not None:
                raise mistake or InputError(f"rank {rank}: {text}")
        return found

    def require_same(self, settings: Mapping[str, Any]) -> None:
        """Return if all processes have the same settings.

        Raises
        ------
        InputError
            Naming what differs, and where.
        """
        require_equal(self.gathered(dict(settings)), self.rank)

    def mean_over_replicas(self, value: torch.Tensor | None) -> torch.Tensor:
        """The mean of a number that one process of every replica has, on all of them."""
        total = torch.zeros((), dtype=torch.float64)
        if value is not None:
            total += value.detach().cpu().double().reshape(())
        self.call(HOST, "the loss of all ranks", lambda: dist.all_reduce(total))
        return total / self.ranks.replicas

    def close(self) -> None:
        """End the threads; the process group of torch stays."""
        self.failure.close()
        for thread in self._threads.values():
            thread.close()

    def _broadcast(self, wire: WireFormat, tensor: torch.Tensor | None, rank: int) -> Any:
        """A tensor of one process in the host's memory of all; None on those that get it."""
        flat = wire.empty(HOST_DEVICE) if tensor is None else wire.flat(tensor.detach().to(HOST_DEVICE), HOST_DEVICE)
        if wire.elements:
            self.call(HOST, f"a tensor of rank {rank}", lambda: dist.broadcast(flat, rank))
        return wire.shaped(flat)

    def exchange_of(self, device: str) -> tuple[Channel, Any]:
        """The channel and the process group for collectives of a device of the plan.

        Every GPU has its own: NCCL's communicators are of one GPU per process, and are made in the order of first use.
        """
        network = self.ranks.network_of(device)
        return (NETWORK, network), self.peers[network]

    def _peer_groups(self, timeout_s: float) -> dict[str, Any]:
        mine = {}
        for part in range(self.ranks.per_replica):
            members = self.ranks.peers_of(part)
            for network in self.ranks.networks(part):
                with _named(f"rank {self.rank} failed to join ranks {members}", timeout_s):
                    group = dist.new_group(members, timeout=timedelta(seconds=timeout_s))
                if self.rank in members:
                    mine[network] = group
        return mine


def require_equal(everyone: Sequence[Mapping[str, Any]], rank: int) -> None:
    """Return if the settings of all processes, in the order of ranks, are those of one.

    Raises
    ------
    InputError
        Naming what differs first, and where.
    """
    for name, mine in everyone[rank].items():
        for other, theirs in enumerate(everyone):
            if theirs.get(name) != mine:
                raise InputError(
                    f"rank {rank} and rank {other} differ in {name}: {reprlib.repr(mine)} against "
                    f"{reprlib.repr(theirs.get(name))}; start all ranks with the same model, plan and options"
                )


def _require_there(devices: Iterable[str]) -> None:
    """Raise InputError where torch knows no device of a kind: joining the group would fail for want of its backend."""
    for device in devices:
        kind = DeviceName.parse(device).kind
        if not KINDS[kind].count():
            raise InputError(
                f"device {device!r} is not here: torch sees no {kind.upper()} device; use rank0/cpu:0, … or another box"
            )


def _join(backend: str, timeout_s: float) -> None:
    """Become part of the group that torchrun or a launcher describes in the environment, unless the caller has."""
    if dist.is_initialized():
        return
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"{missing[0]} is not set: a plan over several ranks needs its processes started, by torchrun "
            "--nproc-per-node N, or call torch.distributed.init_process_group first"
        )
    rank, count = os.environ["RANK"], os.environ["WORLD_SIZE"]
    with _named(f"rank {rank} failed to join a group of {count}", timeout_s):
        timeout, store = timedelta(seconds=timeout_s), own_store(int(rank), int(count), timeout_s)
        if store is None:
            dist.init_process_group(backend, timeout=timeout)
        else:
            dist.init_process_group(backend, timeout=timeout, store=store, rank=int(rank), world_size=int(count))


@contextlib.contextmanager
def _named(what: str, timeout_s: float) -> Iterator[None]:
    """Torch's errors as a `RunError` that says what was tried."""
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        raise RunError(
            f"{what} within {timeout_s:g} s; a process has ended, or not all were started: {first_line(error)}"
        ) from error
