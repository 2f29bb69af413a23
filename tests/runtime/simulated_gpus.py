"""GPUs whose streams do their work as late, and in as odd an order, as events allow, with memory that is used again.

What programs use of ``torch.cuda``, for cells, which hold one number: a `StreamBackend` made with it runs its own code.
Calls that the real functions would refuse are refused: by their signatures, and by CUDA's rules for events and capture.
Memory that is freed is overwritten by the stream that owns it as soon as the allocator may give it away again: what is
not ordered or held reads garbage.
"""

import contextlib
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from runtime.late_streams import GARBAGE, LateEvent, LateGraph, LateStream, Simulation, Slot, as_real

HOST = torch.device("cpu")


class Cell:
    """What an op returns: a number in memory that is given back when nobody holds the cell any more."""

    def __init__(
        self, gpus: "SimulatedGpus", device: torch.device, owner: "LateStream | None", slot: Slot, pinned: bool = False
    ) -> None:
        self.gpus, self.device, self.slot, self.pinned = gpus, device, slot, pinned
        self.owner = owner
        self.held: set[LateStream] = set()

    def given_back_by(self, give_back: Callable[..., None], *args: Any) -> "Cell":
        """The cell, whose memory is given back like this."""
        weakref.finalize(self, give_back, *args).atexit = False
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.empty_like:
            return NotImplemented
        wanted = kwargs or {}
        if not set(wanted) <= {"device", "pin_memory"}:
            raise TypeError(f"the simulation knows no torch.empty_like with {sorted(wanted)}")
        (like,) = args
        return like.gpus.empty(torch.device(wanted.get("device", like.device)), wanted.get("pin_memory", False))

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def stride(self) -> tuple[int, ...]:
        return ()

    def data_ptr(self) -> int:
        return id(self.slot)

    def clone(self) -> "Cell":
        return self.gpus.empty(self.device).copy_(self)

    def is_pinned(self) -> bool:
        return self.pinned

    def to(self, device: torch.device, non_blocking: bool = False, copy: bool = False) -> "Cell":
        """As torch: to the host without blocking, it goes into pinned memory."""
        if torch.device(device) == self.device and not copy:
            return self
        return self.gpus.empty(torch.device(device), non_blocking and torch.device(device) == HOST).copy_(
            self, non_blocking=non_blocking
        )

    def copy_(self, source: "Cell", non_blocking: bool = False) -> "Cell":
        self.gpus.copy(self, source, non_blocking)
        return self

    def record_stream(self, stream: "LateStream") -> None:
        if not isinstance(stream, LateStream) or self.device == HOST:
            raise RuntimeError("record_stream needs a stream, and a tensor on a GPU")
        self.held.add(stream)


class SimulatedGpus(Simulation):
    """The functions of ``torch.cuda`` that `dlplacer.runtime.devices.cuda.StreamBackend` uses.

    Attributes
    ----------
    blocked
        How often the host had to wait for a copy.
    synchronized
        How often it waited for a whole device.
    """

    def __init__(self, seed: int, count: int = 2) -> None:
        self.lock = threading.RLock()
        self.blocked = self.synchronized = self.replays = 0
        self.capturing: LateGraph | None = None
        self.pools: dict[Any, list[Slot]] = {}
        self.events_made = self.pools_made = 0
        self._chooser = random.Random(seed)
        self.default_streams = [LateStream(self, index) for index in range(count)]
        self.streams = list(self.default_streams)
        self._freed: list[tuple[Slot, LateStream | None, list[tuple[LateStream, int]]]] = []
        self._of_thread = threading.local()
        Simulation.current = self

    @as_real(torch.cuda.is_available)
    def is_available(self) -> bool:
        return True

    @as_real(torch.cuda.device_count)
    def device_count(self) -> int:
        return len(self.default_streams)

    @as_real(torch.cuda.get_device_name)
    def get_device_name(self, device: Any = None) -> str:
        return "Simulated"

    @as_real(torch.cuda.set_device)
    def set_device(self, device: Any) -> None:
        self._of_thread.device = self._index(device)

    @as_real(torch.cuda.Stream.__new__)
    def Stream(self, device: Any = None, priority: int = 0) -> LateStream:
        with self.lock:
            self.streams.append(LateStream(self, self._index(device)))
            return self.streams[-1]

    def Event(self, *args: Any, **kwargs: Any) -> LateEvent:
        self.events_made += 1
        return LateEvent(*args, **kwargs)

    def CUDAGraph(self, *args: Any, **kwargs: Any) -> LateGraph:
        return LateGraph(*args, **kwargs)

    @as_real(torch.cuda.graph_pool_handle)
    def graph_pool_handle(self) -> Any:
        self.pools_made += 1
        return (0, self.pools_made)

    @as_real(torch.cuda.current_stream)
    def current_stream(self, device: Any = None) -> LateStream:
        index = self._index(device)
        current: LateStream = self._currents().get(index, self.default_streams[index])
        return current

    @as_real(torch.cuda.set_stream)
    def set_stream(self, stream: LateStream) -> None:
        self._currents()[stream.index] = stream
        self._of_thread.device = stream.index

    @contextlib.contextmanager
    def _under(self, stream: LateStream) -> Iterator[None]:
        device = getattr(self._of_thread, "device", None)
        before = self._currents().get(stream.index)
        self.set_stream(stream)
        try:
            yield
        finally:
            if before is None:
                del self._currents()[stream.index]
            else:
                self._currents()[stream.index] = before
            if device is None:
                del self._of_thread.device
            else:
                self._of_thread.device = device

    @as_real(torch.cuda.stream)
    def stream(self, stream: LateStream) -> Any:
        assert isinstance(stream, LateStream)
        return self._under(stream)

    @as_real(torch.cuda.synchronize)
    def synchronize(self, device: Any = None) -> None:
        self.forbid_capture("synchronizing a device")
        self.synchronized += 1
        index = self._index(device)
        self.work_until(lambda: all(one.done == len(one.entries) for one in self.streams if one.index == index))

    @as_real(torch.cuda._sleep)
    def _sleep(self, cycles: int) -> None:
        pass

    def empty(self, device: torch.device, pinned: bool = False) -> Cell:
        """Memory from the pool of the current stream there, of the capture that is under way, or of the host."""
        if device == HOST:
            cell = Cell(self, device, None, Slot(), pinned)
            return cell.given_back_by(self.give_back, cell.slot, None, cell.held) if pinned else cell
        stream = self.current_stream(device)
        if stream.graph is not None:
            free = stream.graph.slots
            cell = Cell(self, device, None, free.pop() if free else Slot())
            return cell.given_back_by(free.append, cell.slot)
        cell = Cell(self, device, stream, Slot())
        return cell.given_back_by(self.give_back, cell.slot, stream, cell.held)

    def compute(self, cells: tuple[Cell, ...], function: Callable[[list[float]], float]) -> Cell:
        """Run an op: now on a core's thread, some time on a GPU's."""
        slots = [cell.slot for cell in cells]
        index = getattr(self._of_thread, "device", None)
        if index is None:
            assert all(cell.device == HOST for cell in cells)
            with self.lock:
                return Cell(self, HOST, None, Slot(function([slot.value for slot in slots])))
        assert all(cell.device.index == index for cell in cells)
        made = self.empty(torch.device("cuda", index))
        self._assign(self.current_stream(), made.slot, slots, function)
        return made

    def copy(self, target: Cell, source: Cell, non_blocking: bool) -> None:
        """As torch: on the source's current stream, with a barrier on both sides to that of another GPU."""
        first, last = [source.slot], target.slot
        if source.device == target.device == HOST:
            with self.lock:
                last.value = source.slot.value
            return
        stream = self.current_stream(target.device if source.device == HOST else source.device)
        if source.device != target.device and HOST not in (source.device, target.device):
            there = self.current_stream(target.device)
            stream.enqueue(there.moment())
            self._assign(stream, last, first, lambda values: values[0])
            there.enqueue(stream.moment())
            return
        self._assign(stream, last, first, lambda values: values[0])
        host = source if source.device == HOST else target if target.device == HOST else None
        if host is not None:
            if non_blocking and host.pinned:
                host.held.add(stream)  # as torch's allocator of pinned memory notes by itself
            else:
                self.blocked += 1
                stream.synchronize()

    def give_back(self, slot: Slot, owner: LateStream | None, held: set[LateStream]) -> None:
        """Let the owner have the memory again once the streams that held it have come so far."""
        with self.lock:
            self._freed.append((slot, owner, [(stream, len(stream.entries)) for stream in held]))
            self._use_again()

    def work_until(self, condition: Callable[[], bool]) -> None:
        """Let streams work until a condition holds, some of them only when no other can."""
        with self.lock:
            streams = list(self.streams)
            while not condition():
                if self._chooser.random() < 0.1:
                    self._chooser.shuffle(streams)
                if not any(stream.step() for stream in streams):
                    raise RuntimeError("all streams wait for each other")
                self._use_again()

    def work_a_little(self) -> None:
        """Let some stream do some of its work, sometimes."""
        if self._chooser.random() < 0.2:
            stream = self._chooser.choice(self.streams)
            while stream.step() and self._chooser.random() < 0.8:
                pass
            self._use_again()

    def forbid_capture(self, what: str) -> None:
        """Refuse what CUDA refuses to a thread that captures."""
        if any(stream.graph is not None for stream in self._currents().values()):
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")

    def _currents(self) -> dict[int, LateStream]:
        if not hasattr(self._of_thread, "streams"):
            self._of_thread.streams = {}
        found: dict[int, LateStream] = self._of_thread.streams
        return found

    def _index(self, device: Any) -> int:
        if device is None:
            return int(getattr(self._of_thread, "device", 0))
        index = device if isinstance(device, int) else torch.device(device).index
        if index is None or not 0 <= index < len(self.default_streams):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return int(index)

    def _assign(
        self, stream: LateStream, slot: Slot, slots: list[Slot], function: Callable[[list[float]], float]
    ) -> None:
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
