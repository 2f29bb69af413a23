"""Carries what crosses processes in one program: every channel its messages, in the order of the program."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.messages.dry_run_ranks import dry_run_ranks
from dlplacer.runtime.distributed.messages.messages import Channel, Message, by_channel, messages_of
from dlplacer.runtime.distributed.messages.wire_format import WireFormat
from dlplacer.runtime.program.program import Program


class RankChannels:
    """`dlplacer.runtime.executor.rank_links.RankLinks` over the transport of a group.

    A dry run of the program with all processes joined comes first: one that would hang is refused before it starts.

    Parameters
    ----------
    devices
        Name in the program → device, for those of this process.
    """

    def __init__(self, program: Program, group: RankGroup, devices: Mapping[str, RuntimeDevice]) -> None:
        self.on_device = group.transport.on_device
        self._devices = devices
        self._group = group
        messages = messages_of(program, group.rank_of)
        channels = by_channel(messages, group.rank_of, group.transport.ordered_pairs)
        dry_run_ranks(program, channels)
        tags = {channel: tag for tag, channel in enumerate(channels)}
        self._mine: list[tuple[Channel, int, Sequence[Message]]] = [
            (channel, tags[channel], entries)
            for channel, entries in channels.items()
            if any(group.rank in self._ends(message) for message in entries[:1])
        ]
        self._formats: dict[Message, WireFormat] = {}
        self._slots: Mapping[Message, Future[Any]] = {}
        self._arrivals: Mapping[Message, Future[Any]] = {}

    @property
    def knows_formats(self) -> bool:
        """Whether every message of this process travels without a header in the next run."""
        return all(message in self._formats for _, _, entries in self._mine for message in entries)

    def forget_formats(self) -> None:
        """Let every message have its header in the next run, as in the first."""
        self._formats.clear()

    def begin(self) -> None:
        """Give every channel its messages of one run."""
        slots: dict[Message, Future[Any]] = {}
        arrivals: dict[Message, Future[Any]] = {}
        self._slots, self._arrivals = slots, arrivals
        for channel, tag, entries in self._mine:
            thread = self._group.thread(channel)
            for message in entries:
                source, target = self._ends(message)
                if source == self._group.rank:
                    slots[message] = slot = self._group.failure.future()
                    thread.submit(f"sending {message}", partial(self._send, message, slot, target, tag))
                else:
                    arrivals[message] = thread.submit(
                        f"receiving {message}", partial(self._receive, message, source, tag)
                    )

    def send(self, tensor: str, source: str, target: str, value: Any) -> None:
        """Hand a tensor to its channel."""
        handed = self._group.transport.handed(value, self._devices[source].torch_device)
        self._group.failure.done(self._slots[Message(tensor, source, target)], handed)

    def receive(self, tensor: str, source: str, target: str) -> Any:
        """Wait for a tensor, or for the end of the run."""
        message = Message(tensor, source, target)
        rank, _ = self._ends(message)
        what = f"tensor {tensor!r} from {source!r} on rank {rank}"
        in_flight = self._group.failure.wait(self._arrivals[message], what)
        return self._group.transport.taken(in_flight, self._devices[target].torch_device)

    def fail(self, error: BaseException) -> None:
        """End the run on all processes."""
        self._group.failure.fail(error)

    def _send(self, message: Message, slot: "Future[Any]", peer: int, tag: int) -> None:
        value = slot.result()
        self._formats[message] = self._group.transport.send(value, peer, tag, self._formats.get(message))

    def _receive(self, message: Message, peer: int, tag: int) -> Any:
        in_flight, self._formats[message] = self._group.transport.receive(peer, tag, self._formats.get(message))
        return in_flight

    def _ends(self, message: Message) -> tuple[int, int]:
        return self._group.rank_of(message.source), self._group.rank_of(message.target)
