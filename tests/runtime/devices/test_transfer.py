"""A transfer outside a program, on a backend without a GPU."""

from collections.abc import Iterator

import pytest
import torch
from runtime.devices.fake_streams import FakeStreams, FakeTensor

from dlplacer.runtime.devices.cpu import HostDevice
from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.device_streams import as_input
from dlplacer.runtime.profile.link_times import received, sent

GPU0, GPU1, HOST = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
CPU = HostDevice("cpu:0", "core")


@pytest.fixture
def streams() -> FakeStreams:
    return FakeStreams()


@pytest.fixture
def devices(streams: FakeStreams) -> Iterator[tuple[CudaDevice, CudaDevice]]:
    pair = CudaDevice(0, streams), CudaDevice(1, streams)
    streams.log.clear()
    yield pair
    for device in pair:
        device.close()


# The copy stream waits for what computes the tensor and the compute stream goes on; at the other end the compute stream
# waits for the copy, and only then may the memory be used, and be given back.
def test_a_copy_waits_for_the_computation_and_the_computation_for_the_copy(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    in_flight = sent(first, FakeTensor("x", GPU0), second)
    assert streams.log == [
        "s0.1 records s0.1.1",
        "s0.2 waits for s0.1.1",
        "s0.2 copies x to cuda:1 into memory of s1.2",
        "s0.2 protects x",
        "s0.2 records s0.2.1",
    ]
    streams.log.clear()
    assert received(second, in_flight) == FakeTensor("x", GPU1)
    assert streams.log == ["s1.1 waits for s0.2.1", "s1.1 protects x"]


def test_a_tensor_from_the_host_is_staged_waited_for_and_protected(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    in_flight = sent(CPU, FakeTensor("x", HOST), devices[0])
    assert streams.log == ["s0.2 copies x from staged memory", "s0.2 records s0.2.1"]
    streams.log.clear()
    assert received(devices[0], in_flight) == FakeTensor("x", GPU0)
    assert streams.log == ["s0.1 waits for s0.2.1", "s0.1 protects x"]


# The caller's own stream waits for inputs, and every program for the caller's stream: the compute stream, which another
# thread may be feeding, is left alone. What was pinned is not staged, and is read before the caller goes on.
@pytest.mark.parametrize(("name", "log"), [("x", []), ("pinned x", ["host waits for s0.2.1"])])
def test_inputs_come_from_pinned_memory(
    name: str, log: list[str], devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    assert as_input(FakeTensor(name, HOST), devices[0]) == FakeTensor(name, GPU0)
    assert streams.log == [
        f"s0.2 copies {name} from {'pinned' if log else 'staged'} memory",
        "s0.2 records s0.2.1",
        "caller0 waits for s0.2.1",
        f"s0.1 protects {name}",
    ]
    streams.log.clear()
    devices[0].streams.finish_reading()
    devices[0].streams.finish_reading()
    assert streams.log == log


# Two logical devices of one GPU: no copy, but the reader's stream waits for the writer's, and holds the memory.
@pytest.mark.parametrize(
    ("copies", "log"),
    [
        ("free", ["s0.1 records s0.1.1", "s0.2 waits for s0.1.1", "s0.2 protects x"]),
        (
            "forced",
            [
                "s0.1 records s0.1.1",
                "s0.3 waits for s0.1.1",
                "s0.3 copies x to cuda:0",
                "s0.3 protects x",
                "s0.3 records s0.3.1",
                "s0.2 waits for s0.3.1",
                "s0.2 protects x",
            ],
        ),
    ],
)
def test_parts_of_one_gpu(streams: FakeStreams, copies: str, log: list[str]) -> None:
    first, second = CudaDevice(0, streams, part=0, copies=copies), CudaDevice(0, streams, part=1, copies=copies)
    streams.log.clear()
    assert received(second, sent(first, FakeTensor("x", GPU0), second)) == FakeTensor("x", GPU0)
    assert streams.log == log
    first.close()
    second.close()
