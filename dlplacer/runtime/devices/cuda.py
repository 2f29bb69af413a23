"""A CUDA device: a compute stream and copy streams, fed by the thread that issues for all of them."""

from collections.abc import Callable

import torch

from dlplacer.core.errors import InputError
from dlplacer.machines.importers.products import type_of_name
from dlplacer.runtime.devices.base import DeviceKind, Reply, RuntimeDevice, T, Value, issuing_thread
from dlplacer.runtime.devices.streams import COMPUTE_STREAM, StreamBackend, Streams

# torch can only let a stream spin for a number of cycles; about the clock of data-centre GPUs.
_CYCLES_PER_S = 1.5e9


class CudaDevice(RuntimeDevice):
    """The i-th CUDA device, or one of several logical devices on it, with streams of their own.

    The program says, action by action, when streams wait for each other and what is copied. `part` is the number of a
    logical device; with `copies` ``forced`` its tensors are copied to another one as between two GPUs. `torch_type`:
    torch's name of the kind. A kind with the same interface of streams and events, as XPU, is a subclass.
    """

    torch_type = "cuda"
    streams: Streams

    def __init__(
        self, index: int, backend: StreamBackend | None = None, part: int | None = None, copies: str = "free"
    ) -> None:
        self._backend = backend if backend is not None else StreamBackend(self.torch_type)
        count, whole = self._backend.device_count(), f"{self.torch_type}:{index}"
        if index >= count:
            kind = self.torch_type.upper()
            found = f"{count} {kind} devices" if count else f"no {kind} device"
            raise InputError(f"device '{whole}' is not here: torch sees {found}; use cpu:0, cpu:1, … or another box")
        name = whole if part is None else f"{whole}/{part}"
        product = self._backend.torch.get_device_name(index)
        super().__init__(name, type_of_name(product), torch.device(self.torch_type, index), issuing_thread())
        self.streams = Streams(self._backend, index, copies_here=copies == "forced")
        self._index, self._closed = index, False
        self.submit(lambda: None).result()

    def submit(self, work: Callable[[], T]) -> Reply[T]:
        """See `RuntimeDevice.submit`."""
        if self._closed:
            raise InputError(f"device {self.name!r} is closed; apply the plan again to run it")

        def on_device() -> T:
            self.activate()
            return work()

        return self.worker.submit(on_device)

    def activate(self) -> None:
        """Make the device and its compute stream current."""
        self._backend.torch.set_device(self._index)
        self._backend.torch.set_stream(self._compute)

    def close(self) -> None:
        """Take no more work; the thread is not this device's alone."""
        self._closed = True

    def receive(self, tensor: Value) -> Value:
        """A copy of a tensor of the host's memory, for which the compute stream waits."""
        return None if tensor is None else self.streams.bring(tensor, self.torch_device)

    def drain(self) -> None:
        """Wait for all streams, the caller's own among them."""
        self._backend.torch.synchronize(self._index)

    def synchronize(self) -> None:
        """Wait for the compute stream."""
        self._compute.synchronize()

    def now(self) -> torch.Event:
        """An event recorded on the compute stream."""
        event: torch.Event = self._backend.torch.Event(enable_timing=True)
        event.record(self._compute)
        return event

    def elapsed_s(self, begin: torch.Event, end: torch.Event) -> float:
        """Seconds between two events."""
        return float(begin.elapsed_time(end)) * 1e-3

    def pause(self, pause_s: float) -> None:
        """Let the compute stream pause."""
        with self._backend.torch.stream(self._compute):
            self._backend.torch._sleep(int(pause_s * _CYCLES_PER_S))

    @property
    def _compute(self) -> torch.Stream:
        return self.streams.named(COMPUTE_STREAM)


# Wheels for ROCm drive AMD's GPUs under the name of CUDA, and say so in torch.version.hip alone.
_HIP = getattr(torch.version, "hip", None)
_SOFTWARE = {"cuda": str(torch.version.cuda)} if _HIP is None else {"rocm": str(_HIP)}

CUDA = DeviceKind(
    torch_type=CudaDevice.torch_type,
    open=CudaDevice,
    count=StreamBackend(CudaDevice.torch_type).device_count,
    in_host_memory=False,
    divisible=True,
    collectives="nccl",
    generator=lambda index: torch.cuda.default_generators[index],
    versions=lambda index: {"hardware": torch.cuda.get_device_name(index), **_SOFTWARE},
)
