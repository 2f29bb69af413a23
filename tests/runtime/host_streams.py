"""Streams in the host's memory: torch computes at once, and what is enqueued is written down."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from runtime.late_streams import as_real
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.runtime.devices.cuda import CudaDevice


class HostEvent:
    """An event that has happened."""

    def __init__(self, log: list[str], timed: bool) -> None:
        self.log, self.timed, self.moment_s = log, timed, 0.0

    @as_real(torch.cuda.Event.synchronize)
    def synchronize(self) -> None:
        self.log.append("sync")

    @as_real(torch.cuda.Event.query)
    def query(self) -> bool:
        return True

    @as_real(torch.cuda.Event.record)
    def record(self, stream: "HostStream") -> None:
        self.moment_s = time.perf_counter()
        self.log.append("record")

    @as_real(torch.cuda.Event.elapsed_time)
    def elapsed_time(self, end_event: "HostEvent") -> float:
        assert self.timed
        assert end_event.timed
        return 1e3 * (end_event.moment_s - self.moment_s)


class HostStream:
    """A stream that has done everything."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @as_real(torch.cuda.Stream.wait_event)
    def wait_event(self, event: HostEvent) -> None:
        assert isinstance(event, HostEvent)
        self.log.append("wait")

    @as_real(torch.cuda.Stream.synchronize)
    def synchronize(self) -> None:
        self.log.append("end")


class HostGraph(TorchDispatchMode):
    """As ``torch.cuda.CUDAGraph``, for the operators of a thread: a capture computes nothing, and a replay writes.

    What a capture makes has no numbers before the first replay, and what it would change stays as it is.
    """

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.ended = False

    @as_real(torch.cuda.CUDAGraph.capture_begin)
    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        assert pool is not None
        self.log.append("capture")
        self.__enter__()

    @as_real(torch.cuda.CUDAGraph.capture_end)
    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        self.ended = True

    @as_real(torch.cuda.CUDAGraph.replay)
    def replay(self) -> None:
        assert self.ended
        self.log.append("replay")
        for function, args, kwargs, made in self.calls:
            results = pytree.tree_leaves(function(*args, **kwargs))
            for there, result in zip(made, (one for one in results if isinstance(one, torch.Tensor)), strict=True):
                if there.data_ptr() != result.data_ptr():
                    there.copy_(result)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        before = [one.clone() for one in given]
        results = function(*args, **kwargs)
        made = [one for one in pytree.tree_leaves(results) if isinstance(one, torch.Tensor)]
        self.calls.append((function, args, kwargs, made))
        old = {one.untyped_storage().data_ptr() for one in given}
        for one, was in zip(given, before, strict=True):
            if not torch.equal(one.nan_to_num(), was.nan_to_num()):
                one.copy_(was)
        for one in made:
            if one.untyped_storage().data_ptr() not in old and one.is_floating_point():
                one.fill_(torch.nan)
        return results


class HostStreams:
    """A `StreamBackend` in the host's memory, and the module of torch that it calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.torch = self
        self._pools = itertools.count()

    def device_count(self) -> int:
        return 2

    def get_device_name(self, index: int) -> str:
        return "Host"

    def set_device(self, index: int) -> None:
        pass

    def Stream(self, device: int) -> HostStream:
        return HostStream(self.log)

    def current_stream(self, index: int) -> HostStream:
        return HostStream(self.log)

    def set_stream(self, stream: HostStream) -> None:
        pass

    @contextmanager
    def stream(self, stream: HostStream) -> Iterator[None]:
        yield

    def copy(
        self, tensor: torch.Tensor, device: torch.device, stream: HostStream, arrival: HostStream | None = None
    ) -> torch.Tensor:
        self.log.append("copy")
        return tensor.clone(memory_format=torch.preserve_format)

    def upload(self, tensor: torch.Tensor, device: torch.device, stream: HostStream) -> torch.Tensor:
        self.log.append("upload")
        return tensor.clone(memory_format=torch.preserve_format)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone(memory_format=torch.preserve_format)

    def protect(self, tensor: torch.Tensor, stream: HostStream) -> None:
        assert isinstance(tensor, torch.Tensor)
        self.log.append("hold")

    def synchronize(self, index: int) -> None:
        self.log.append("device")

    def Event(self, enable_timing: bool = False) -> HostEvent:
        self.log.append("timed event" if enable_timing else "event")
        return HostEvent(self.log, enable_timing)

    def CUDAGraph(self) -> "HostGraph":
        return HostGraph(self.log)

    def graph_pool_handle(self) -> Any:
        return (0, next(self._pools))

    def _sleep(self, cycles: int) -> None:
        self.log.append("pause")


class HostCudaDevice(CudaDevice):
    """A `CudaDevice` whose tensors are in the host's memory."""

    def __init__(self, index: int, backend: Any, part: int | None, copies: str) -> None:
        super().__init__(index, backend, part, copies)
        self.torch_device = torch.device("cpu")
        self.submit(self._one_thread).result()

    def _one_thread(self) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
