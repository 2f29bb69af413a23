"""A stream backend that computes nothing and writes down what it is told, in order."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class FakeEvent:
    """An event with a name; waiting for it on the host is recorded."""

    name: str
    log: list[str]
    time_ms: float = 0.0

    def record(self, stream: "FakeStream") -> None:
        self.time_ms = float(len(self.log))
        if self.name != "timed":
            stream.events += 1
            self.name = f"{stream.name}.{stream.events}"
        self.log.append(f"{stream.name} records {self.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")

    def elapsed_time(self, other: "FakeEvent") -> float:
        return other.time_ms - self.time_ms


@dataclass
class FakeStream:
    """A stream that numbers the events that it records."""

    name: str
    log: list[str]
    events: int = 0

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


@dataclass(frozen=True)
class FakeTensor:
    """A name and a place."""

    name: str
    device: torch.device

    def is_pinned(self) -> bool:
        return self.name.startswith("pinned")


@dataclass
class FakeStreams:
    """See `dlplacer.runtime.devices.streams.StreamBackend`. Streams of device 1 are called s1.1, s1.2, …"""

    count: int = 2
    name: str = "NVIDIA H200"
    log: list[str] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    events: int = 0

    def device_count(self) -> int:
        return self.count

    def device_name(self, index: int) -> str:
        return self.name

    def set_device(self, index: int) -> None:
        self.log.append(f"device {index} is current")

    def stream(self, index: int) -> FakeStream:
        self.made[index] = self.made.get(index, 0) + 1
        return FakeStream(f"s{index}.{self.made[index]}", self.log)

    def current(self, index: int) -> FakeStream:
        return FakeStream(f"caller{index}", self.log)

    def on(self, stream: FakeStream) -> Any:
        return nullcontext()

    def activate(self, stream: FakeStream) -> None:
        self.log.append(f"{stream.name} is current")

    def copy(
        self, tensor: FakeTensor, device: torch.device, stream: FakeStream, arrival: FakeStream | None = None
    ) -> FakeTensor:
        memory = "" if arrival is None else f" into memory of {arrival.name}"
        self.log.append(f"{stream.name} copies {tensor.name} to {device}{memory}")
        return FakeTensor(tensor.name, device)

    def upload(self, tensor: FakeTensor, device: torch.device, stream: FakeStream) -> FakeTensor:
        self.log.append(
            f"{stream.name} copies {tensor.name} from {'pinned' if tensor.is_pinned() else 'staged'} memory"
        )
        return FakeTensor(tensor.name, device)

    def pinned(self, tensor: FakeTensor) -> FakeTensor:
        return FakeTensor(f"pinned {tensor.name}", tensor.device)

    def protect(self, tensor: Any, stream: FakeStream) -> None:
        self.log.append(f"{stream.name} protects {tensor.name}")

    def synchronize(self, index: int) -> None:
        self.log.append(f"host waits for device {index}")

    def event(self, timed: bool) -> FakeEvent:
        self.events += 1
        return FakeEvent("timed" if timed else "untimed", self.log)

    def graph(self) -> Any:
        raise NotImplementedError

    def graph_pool(self) -> Any:
        raise NotImplementedError

    def pause(self, stream: FakeStream, pause_s: float) -> None:
        self.log.append(f"{stream.name} pauses for {pause_s} s")
