"""Streams in the host's memory: torch computes at once, and what is enqueued is written down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dlplacer.runtime.devices.cuda import CudaDevice


class Event:
    """An event that has happened."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def synchronize(self) -> None:
        self.log.append("sync")

    def record(self, stream: "Stream") -> None:
        self.log.append("record")

    def elapsed_time(self, other: "Event") -> float:
        return 0.0


class Stream:
    """A stream that has done everything."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)
        self.log.append("wait")

    def synchronize(self) -> None:
        self.log.append("end")


class HostStreams:
    """A `StreamBackend` in the host's memory."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def device_count(self) -> int:
        return 2

    def device_name(self, index: int) -> str:
        return "Host"

    def set_device(self, index: int) -> None:
        pass

    def stream(self, index: int) -> Stream:
        return Stream(self.log)

    def current(self, index: int) -> Stream:
        return Stream(self.log)

    def activate(self, stream: Stream) -> None:
        pass

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        yield

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: Stream, arrival: Stream | None = None
    ) -> torch.Tensor:
        self.log.append("copy")
        return tensor.clone(memory_format=torch.preserve_format)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: Stream) -> torch.Tensor:
        self.log.append("upload")
        return tensor.clone(memory_format=torch.preserve_format)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.preserve_format)

    def protect(self, tensor: torch.Tensor, stream: Stream) -> None:
        assert isinstance(tensor, torch.Tensor)
        self.log.append("hold")

    def synchronize(self, index: int) -> None:
        self.log.append("device")

    def event(self, timed: bool) -> Event:
        self.log.append("timed event" if timed else "event")
        return Event(self.log)

    def graph(self) -> Any:
        raise NotImplementedError

    def graph_pool(self) -> Any:
        raise NotImplementedError

    def pause(self, stream: Stream, pause_s: float) -> None:
        self.log.append("pause")


class HostCudaDevice(CudaDevice):
    """A `CudaDevice` whose tensors are in the host's memory."""

    def __init__(self, index: int, backend: Any, part: int | None, copies: str) -> None:
        super().__init__(index, backend, part, copies)
        self.torch_device = torch.device("cpu")

    def _prepare(self) -> None:
        super()._prepare()
        torch.get_num_threads()
        torch.set_num_threads(1)
