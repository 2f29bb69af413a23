"""Inputs of a step, on a backend without a GPU."""

from collections.abc import Iterator

import pytest
import torch
from runtime.devices.fake_streams import FakeStreams, FakeTensor

from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.streams import as_input

GPU0, GPU1, HOST = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")


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
