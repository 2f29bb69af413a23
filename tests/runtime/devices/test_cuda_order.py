"""The order of what a CUDA device enqueues, on a backend without a GPU."""

import inspect
from collections.abc import Iterator

import pytest
import torch
from runtime.devices.fake_streams import FakeStreams, FakeTensor
from runtime.host_streams import HostStreams

from dlplacer.core.errors import InputError
from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.streams import StreamBackend, as_input

GPU0, HOST = torch.device("cuda", 0), torch.device("cpu")


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


def test_parts_of_one_gpu_have_streams_of_their_own(streams: FakeStreams) -> None:
    first, second = CudaDevice(0, streams, part=0), CudaDevice(0, streams, part=1, copies="forced")
    assert (first.name, second.name) == ("cuda:0/0", "cuda:0/1")
    assert first.torch_device == second.torch_device
    assert (first.streams.copies_here, second.streams.copies_here) == (False, True)
    assert [line for line in streams.log if "s0" in line] == ["s0.1 is current", "s0.2 is current"]
    first.close()
    second.close()


def test_a_device_that_is_not_here() -> None:
    with pytest.raises(InputError, match="device 'cuda:2' is not here: torch sees 2 CUDA devices; use cpu:0"):
        CudaDevice(2, FakeStreams())
    with pytest.raises(InputError, match="device 'cuda:0' is not here: torch sees no CUDA device"):
        CudaDevice(0, FakeStreams(count=0))


# A stand-in that takes other arguments than the real one could not fail.
@pytest.mark.parametrize("stand_in", [FakeStreams, HostStreams])
def test_stand_ins_take_what_the_backend_takes(stand_in: type) -> None:
    for name, method in vars(StreamBackend).items():
        if not name.startswith("_"):
            real, ours = inspect.signature(method).parameters, inspect.signature(getattr(stand_in, name)).parameters
            assert list(real) == list(ours), name
            assert [one.default for one in real.values()] == [one.default for one in ours.values()], name


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
