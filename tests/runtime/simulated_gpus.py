"""GPUs whose streams do their work as late, and in as odd an order, as events allow, with memory that is used again.

A `StreamBackend` for cells, which hold one number. Memory that is freed is overwritten by the stream that owns it as
soon as the allocator may give it away again: what is not ordered or held reads garbage.
"""

import math
import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

GARBAGE = math.nan


@dataclass
class Slot:
    """Memory for one number."""

    value: float = GARBAGE


class Cell:
    """What an op returns: a number in memory that is given back when nobody holds the cell any more."""

    def __init__(self, gpus: "SimulatedGpus | None", owner: "Stream | None", slot: Slot) -> None:
        self.gpus, self.slot = gpus, slot
        self.held: set[Stream] = set()
        if gpus is not None:
            weakref.finalize(self, gpus.give_back, slot, owner, self.held).atexit = False

    def to(self, device: torch.device) -> "Cell":
        """A core's send: the copy is there when the call returns, in memory that no stream of the GPU owns."""
        gpus = SimulatedGpus.current
        return Cell(gpus, None, Slot(self.slot.value))


@dataclass(eq=False)
class Event:
    stream: "Stream"
    count: int

    @property
    def happened(self) -> bool:
        return self.stream.done >= self.count

    def synchronize(self) -> None:
        self.stream.gpus.work_until(lambda: self.happened)


@dataclass(eq=False)
class Stream:
    """A queue of work; an entry is an event to wait for or something to do."""

    gpus: "SimulatedGpus"
    entries: list[Event | Callable[[], None]] = field(default_factory=list)
    done: int = 0

    def enqueue(self, entry: Event | Callable[[], None]) -> None:
        with self.gpus.lock:
            self.entries.append(entry)
            self.gpus.work_a_little()

    def record_event(self) -> Event:
        return Event(self, len(self.entries))

    def wait_event(self, event: Event) -> None:
        self.enqueue(event)

    def synchronize(self) -> None:
        count = len(self.entries)
        self.gpus.work_until(lambda: self.done >= count)

    def step(self) -> bool:
        """Whether the next entry could be done."""
        if self.done == len(self.entries):
            return False
        entry = self.entries[self.done]
        if isinstance(entry, Event):
            if not entry.happened:
                return False
        else:
            entry()
        self.done += 1
        return True


class SimulatedGpus:
    """What programs use of `dlplacer.runtime.devices.stream_backend.StreamBackend`."""

    current: "SimulatedGpus | None" = None

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self._chooser = random.Random(seed)
        self._streams: list[Stream] = []
        self._freed: list[tuple[Slot, Stream | None, list[tuple[Stream, int]]]] = []
        self._of_thread = threading.local()
        SimulatedGpus.current = self

    def device_count(self) -> int:
        return 2

    def device_name(self, index: int) -> str:
        return "Simulated"

    def set_device(self, index: int) -> None:
        pass

    def stream(self, index: int) -> Stream:
        with self.lock:
            self._streams.append(Stream(self))
            return self._streams[-1]

    def activate(self, stream: Stream) -> None:
        self._of_thread.stream = stream

    def copy(self, cell: Cell, device: torch.device, stream: Stream) -> Cell:
        made = Cell(None, None, Slot()) if device.type == "cpu" else Cell(self, None, Slot())
        self._assign(stream, made.slot, [cell.slot], lambda values: values[0])
        return made

    def protect(self, cell: Cell, stream: Stream) -> None:
        cell.held.add(stream)

    def synchronize(self, index: int) -> None:
        self.work_until(lambda: all(stream.done == len(stream.entries) for stream in self._streams))

    def compute(self, cells: tuple[Cell, ...], function: Callable[[list[float]], float]) -> Cell:
        """Run an op: now on a core's thread, some time on a GPU's."""
        stream = getattr(self._of_thread, "stream", None)
        slots = [cell.slot for cell in cells]
        if stream is None:
            with self.lock:
                return Cell(None, None, Slot(function([slot.value for slot in slots])))
        made = Cell(self, stream, Slot())
        self._assign(stream, made.slot, slots, function)
        return made

    def give_back(self, slot: Slot, owner: Stream | None, held: set[Stream]) -> None:
        """Let the owner have the memory again once the streams that held it have come so far."""
        with self.lock:
            self._freed.append((slot, owner, [(stream, len(stream.entries)) for stream in held]))
            self._use_again()

    def work_until(self, condition: Callable[[], bool]) -> None:
        """Let streams work until a condition holds, some of them only when no other can."""
        with self.lock:
            streams = list(self._streams)
            while not condition():
                if self._chooser.random() < 0.1:
                    self._chooser.shuffle(streams)
                if not any(stream.step() for stream in streams):
                    raise RuntimeError("all streams wait for each other")
                self._use_again()

    def work_a_little(self) -> None:
        """Let some stream do some of its work, sometimes."""
        if self._chooser.random() < 0.2:
            stream = self._chooser.choice(self._streams)
            while stream.step() and self._chooser.random() < 0.8:
                pass
            self._use_again()

    def _assign(self, stream: Stream, slot: Slot, slots: list[Slot], function: Callable[[list[float]], float]) -> None:
        def work() -> None:
            slot.value = function([source.value for source in slots])

        stream.enqueue(work)

    def _use_again(self) -> None:
        ready = [entry for entry in self._freed if all(stream.done >= count for stream, count in entry[2])]
        self._freed = [entry for entry in self._freed if entry not in ready]
        for slot, owner, _ in ready:
            if owner is None:
                slot.value = GARBAGE
            else:
                owner.entries.append(lambda slot=slot: setattr(slot, "value", GARBAGE))
