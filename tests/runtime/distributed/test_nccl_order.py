"""What a transport over NCCL enqueues, on simulated GPUs whose streams do their work as late as events allow."""

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
def nccl(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
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
    return carried


def came_wrong(seed: int, maker: int, reader: int, nccl: list[Cell], made: list[int] | None = None) -> bool:
    """Whether a number that one GPU makes and another reads is wrong; the transport's own GPU is the first.

    Parameters
    ----------
    made
        To be filled: how many events there are after each message.
    """
    gpus = SimulatedGpus(seed)
    backend = StreamBackend("cuda", gpus)
    devices = [CudaDevice(index, backend) for index in (maker, reader)]
    transport = NcclTransport(GPUS[0], backend)
    found: list[float] = []

    def make() -> Any:
        tensor = gpus.compute((), lambda values: 7.0)
        return transport.handed(tensor, devices[0].torch_device)

    def note(values: list[float]) -> float:
        found.extend(values)
        return 0.0

    def read(in_flight: Any) -> Cell:
        tensor = transport.taken(in_flight, devices[1].torch_device)
        assert tensor.device == devices[1].torch_device
        return gpus.compute((tensor,), note)

    for _ in range(3):  # memory and events are used again
        transport.send(devices[0].submit(make).result(), 1, 0, OneNumber())
        in_flight, _ = transport.receive(1, 0, OneNumber())
        devices[1].submit(lambda arrived=in_flight: read(arrived)).result()
        del in_flight
        if made is not None:
            made.append(gpus.events_made)
    gpus.work_until(lambda: all(stream.done == len(stream.entries) for stream in gpus.streams))
    for device in devices:
        device.close()
    assert gpus.blocked == gpus.synchronized == 0
    return found != [7.0, 7.0, 7.0]


# Any GPU of a rank may make a tensor, and any may read it.
@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("maker", [0, 1])
def test_a_message_waits_for_the_gpu_that_made_it_and_the_reader_for_the_message(
    maker: int, reader: int, nccl: list[Cell]
) -> None:
    assert not any(came_wrong(seed, maker, reader, nccl) for seed in range(40))
    made: list[int] = []
    came_wrong(0, maker, reader, nccl, made)
    assert made[0] == made[2]


# What was wrong once: the event was recorded on the stream of the transport's GPU, whichever one computed. That the
# simulation shows it.
def test_an_event_of_another_gpu_says_nothing(nccl: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    def handed(self: NcclTransport, value: Any, device: torch.device) -> Any:
        return value, self._recorded(self._backend.current(0), GPUS[0]), GPUS[0]

    monkeypatch.setattr(NcclTransport, "handed", handed)
    assert any(came_wrong(seed, 1, 0, nccl) for seed in range(40))
