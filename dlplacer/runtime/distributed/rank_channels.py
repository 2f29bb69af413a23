"""Tensors between processes: a communicator for every two devices and direction, which carries them in planned order.

A device issues its SENDs in the order of its program, and its channels carry them in that order. The dry run of the
joined programs of all processes (`dlplacer.runtime.program.checks`) shows that there is an order of all actions in
which every tensor is sent before it is received. Each channel keeps to it, so that none waits for a later tensor.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.distributed.group import HEADER_LENGTH, RankGroup, WireFormat
from dlplacer.runtime.executor.run import RankLinks
from dlplacer.runtime.program.program import Program, Send

AHEAD = 2
"""Tensors of a channel whose receipt has begun before they are needed: one arrives while the one before is used. A
receipt that has begun has memory, and on a GPU it occupies multiprocessors until the tensor is there."""


@dataclass
class _Channel:
    """One end of a channel, used by the thread of its device alone.

    `tensors` are in the order in which they travel. With gloo, those of programs with different tags never match. Their
    formats are known to both ends after the first run; in that one a header goes ahead of each tensor.
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
        """Start to send a tensor; its memory is kept until it has left."""
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
        """Wait for a tensor, and those that travel ahead of it."""
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
        """Wait until all has left that was sent."""
        while self.under_way:
            self._finished("all tensors")

    def _start(self, move: Any, tensor: str, flat: torch.Tensor) -> None:
        with self.group.waiting(f"tensor {tensor!r} {self.named}"):
            # An empty tensor does not travel.
            group = self.group.direction(self.ends)
            work = move(flat, self.peer, group=group, tag=self.tag) if flat.numel() else None
        self.under_way.append((work, flat))

    def _finished(self, tensor: str) -> torch.Tensor:
        # No local name for the work: an error's traceback would keep it, and with it the connection.
        if self.under_way[0][0] is not None:
            with self.group.waiting(f"tensor {tensor!r} {self.named}"):
                self.under_way[0][0].wait()
        return self.under_way.popleft()[1]


class RankChannels(RankLinks):
    """`RankLinks` of a program over the process groups of a `RankGroup`, for the devices of this process."""

    def __init__(self, program: Program, group: RankGroup, devices: Mapping[str, RuntimeDevice]) -> None:
        self._group = group
        self._incoming: dict[str, dict[str, _Channel]] = {name: {} for name in devices}
        self._outgoing: dict[str, dict[str, _Channel]] = {name: {} for name in devices}
        tag = next(group.programs)
        # In the same order on all processes: the two of a channel meet when they connect.
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
        """Start to receive the first tensors."""
        for channel in self._incoming[device].values():
            channel.taken = 0
            channel.expect()

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Start to send a tensor."""
        self._outgoing[source][target].send(tensor, value)

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor: this thread in the host's memory, else the current stream."""
        return self._incoming[target][source].receive(tensor)

    def end(self, device: str) -> None:
        """Wait for sent tensors, whose memory may be written to afterwards."""
        for channel in self._outgoing[device].values():
            channel.finish()

    def fail(self) -> None:
        """End the run in all processes."""
        for channels in (*self._incoming.values(), *self._outgoing.values()):
            for channel in channels.values():
                channel.under_way.clear()
        self._group.fail()


def crossing(program: Program, group: RankGroup) -> dict[tuple[str, str], tuple[str, ...]]:
    """(source, target) → the tensors from a device of one process to one of another, in the order of the program."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, actions in program.actions.items():
        for action in actions:
            if isinstance(action, Send) and group.rank_of(source) != group.rank_of(action.target):
                found[source, action.target].append(action.tensor)
    return {ends: tuple(tensors) for ends, tensors in found.items()}
