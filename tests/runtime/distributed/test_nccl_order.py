"""What a transport over NCCL enqueues on GPUs: on simulated ones, whose streams do their work as late as events allow."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.simulated_gpus import Cell, SimulatedGpus

from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.stream_backend import StreamBackend
from dlplacer.runtime.distributed.messages.transport import NcclTransport

GPUS = [torch.device("cuda", index) for index in range(2)]


class OneNumber:
    """A `WireFormat` of cells."""

    elements = 1

    def flat(self, value: Cell, device: torch.device) -> Cell:
        return value

    def empty(self, device: torch.device) -> Cell:
        gpus = SimulatedGpus.current
        assert gpus is not None
        return gpus.empty(device)

    def shaped(self, flat: Cell) -> Cell:
        return flat


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Cell]]:
    """Messages under way; as NCCL, which works on the current stream, and on one GPU for every process."""
    carried: list[Cell] = []

    def send(tensor: Cell, peer: int, tag: int = 0) -> None:
        assert tensor.device == GPUS[0]
        with tensor.gpus.lock:
            wire = tensor.gpus.empty(GPUS[0])
            wire.copy_(tensor)
            carried.append(wire)

    def recv(tensor: Cell, peer: int, tag: int = 0) -> None:
        assert tensor.device == GPUS[0]
        tensor.copy_(carried.pop(0))

    monkeypatch.setattr(dist, "send", send)
    monkeypatch.setattr(dist, "recv", recv)
    yield carried


# Both GPUs of a rank make tensors; the transport's own is the first.
@pytest.mark.parametrize("maker", [0, 1])
def test_a_message_waits_for_the_gpu_that_made_the_tensor(maker: int, nccl: list[Cell]) -> None:
    wrong = 0
    for seed in range(60):
        gpus = SimulatedGpus(seed)
        backend = StreamBackend("cuda", gpus)
        device = CudaDevice(maker, backend)
        transport = NcclTransport(GPUS[0], backend)

        def make() -> Any:
            tensor = gpus.compute((), lambda values: 7.0)
            return transport.handed(tensor, device.torch_device)

        handed = device.submit(make).result()
        transport.send(handed, 1, 0, OneNumber())
        gpus.work_until(lambda: all(stream.done == len(stream.entries) for stream in gpus._streams))
        wrong += nccl.pop().slot.value != 7.0
        del handed
        device.close()
    assert wrong == 0
