"""Streams, events and graphs of simulated GPUs: work is done as late, and in as odd an order, as events allow."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from runtime.simulated_gpus import SimulatedGpus

GARBAGE = math.nan


def as_real(real: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method that takes what the real one takes: a call that does not fit its signature is a TypeError."""
    signature = inspect.signature(real)
    bound = next(iter(signature.parameters), "") in ("self", "cls")

    def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            signature.bind(*([self] if bound else []), *args, **kwargs)
            return method(self, *args, **kwargs)

        return checked

    return decorated


@dataclass
class Slot:
    """Memory for one number."""

    value: float = GARBAGE


class Simulation:
    """The simulation that runs; `runtime.simulated_gpus.SimulatedGpus` is one."""

    current: "SimulatedGpus | None" = None


class LateEvent:
    """A moment of a stream; recorded again it stands for the later one, and who waits already keeps the earlier one."""

    @as_real(torch.cuda.Event.__new__)
    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        assert (blocking, interprocess, external) == (False, False, False)
        self.timed = enable_timing
        self.device: int | None = None
        self.moment: Moment | None = None

    @as_real(torch.cuda.Event.record)
    def record(self, stream: "LateStream | None" = None) -> None:
        gpus = Simulation.current
        assert gpus is not None
        stream = gpus.current_stream() if stream is None else stream
        if self.device not in (None, stream.index):
            raise RuntimeError(f"Event device {self.device} does not match recording stream's device {stream.index}.")
        self.device = stream.index
        self.moment = stream.moment()

    @as_real(torch.cuda.Event.query)
    def query(self) -> bool:
        return self.moment is None or self.moment.happened

    @as_real(torch.cuda.Event.synchronize)
    def synchronize(self) -> None:
        if self.moment is not None:
            self.moment.stream.gpus.forbid_capture("synchronizing an event")
            moment = self.moment
            moment.stream.gpus.work_until(lambda: moment.happened)

    @as_real(torch.cuda.Event.elapsed_time)
    def elapsed_time(self, end_event: "LateEvent") -> float:
        if not (self.timed and end_event.timed) or self.moment is None or end_event.moment is None:
            raise ValueError("both events must be recorded, with enable_timing=True")
        return float(end_event.moment.count - self.moment.count)


@dataclass(frozen=True, eq=False)
class Moment:
    """What a stream has been given so far."""

    stream: "LateStream"
    count: int
    capture: "LateGraph | None" = None

    @property
    def happened(self) -> bool:
        return self.stream.done >= self.count


Work = Callable[[], None]


class LateStream:
    """A queue of work; an entry is a moment to wait for or something to do."""

    def __init__(self, gpus: "SimulatedGpus", index: int) -> None:
        self.gpus, self.index = gpus, index
        self.entries: list[Moment | Work] = []
        self.done = 0
        self.graph: LateGraph | None = None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)

    def moment(self) -> Moment:
        return Moment(self, len(self.entries), self.graph)

    def enqueue(self, entry: Moment | Work) -> None:
        with self.gpus.lock:
            if self.graph is not None:
                if isinstance(entry, Moment):
                    if entry.capture is not self.graph:
                        raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
                    return
                self.graph.work.append(entry)
                return
            if isinstance(entry, Moment) and entry.capture is not None:
                raise RuntimeError("CUDA error: a stream that is not captured waits for one that is")
            self.entries.append(entry)
            self.gpus.work_a_little()

    @as_real(torch.cuda.Stream.record_event)
    def record_event(self, event: LateEvent | None = None) -> LateEvent:
        event = LateEvent() if event is None else event
        event.record(self)
        return event

    @as_real(torch.cuda.Stream.wait_event)
    def wait_event(self, event: LateEvent) -> None:
        if event.moment is not None:
            self.enqueue(event.moment)

    @as_real(torch.cuda.Stream.synchronize)
    def synchronize(self) -> None:
        self.gpus.forbid_capture("synchronizing a stream")
        count = len(self.entries)
        self.gpus.work_until(lambda: self.done >= count)

    def step(self) -> bool:
        """Whether the next entry could be done."""
        if self.done == len(self.entries):
            return False
        entry = self.entries[self.done]
        if isinstance(entry, Moment):
            if not entry.happened:
                return False
        else:
            entry()
        self.done += 1
        return True


class LateGraph:
    """As ``torch.cuda.CUDAGraph``: captured work is not done, and done whenever the graph is replayed."""

    @as_real(torch.cuda.CUDAGraph.__new__)
    def __init__(self, keep_graph: bool = False) -> None:
        assert Simulation.current is not None
        self.gpus = Simulation.current
        self.work: list[Work] = []
        self.stream: LateStream | None = None
        self.slots: list[Slot] = []
        self.ended = False

    @as_real(torch.cuda.CUDAGraph.capture_begin)
    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(f"Unknown capture error mode: {capture_error_mode}")
        stream = self.gpus.current_stream()
        if stream in self.gpus.default_streams:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if self.gpus.capturing or self.ended:
            raise RuntimeError("only one capture at a time, and one for each graph")
        self.gpus.capturing = self
        self.slots = self.gpus.pools.setdefault(pool, []) if pool is not None else []
        self.stream, stream.graph = stream, self

    @as_real(torch.cuda.CUDAGraph.capture_end)
    def capture_end(self) -> None:
        if self.stream is None or self.gpus.capturing is not self:
            raise RuntimeError("the graph is not being captured")
        self.stream.graph, self.gpus.capturing, self.ended = None, None, True

    @as_real(torch.cuda.CUDAGraph.replay)
    def replay(self) -> None:
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for entry in self.work:
            self.gpus.current_stream().enqueue(entry)
        self.gpus.replays += 1

    @as_real(torch.cuda.CUDAGraph.reset)
    def reset(self) -> None:
        self.work.clear()
