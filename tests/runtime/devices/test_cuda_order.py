"""The order of what a CUDA device enqueues, on a backend without a GPU."""

import inspect
from collections.abc import Iterator

import pytest
import torch
from runtime.devices.fake_streams import FakeStreams, FakeTensor
from runtime.host_streams import HostStreams

from dlplacer.core.errors import InputError
from dlplacer.machines.importers.products import type_of_name
from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.stream_backend import StreamBackend

GPU0, GPU1 = torch.device("cuda", 0), torch.device("cuda", 1)


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


def test_a_device_sets_itself_up_on_its_own_thread(streams: FakeStreams) -> None:
    device = CudaDevice(1, streams)
    assert streams.log == ["device 1 is current", "s1.1 is current"]
    assert (device.name, device.type, device.torch_device) == ("cuda:1", "H200", torch.device("cuda", 1))
    device.close()
    with pytest.raises(InputError, match="device 'cuda:1' is closed"):
        device.submit(lambda: None)


def test_streams_are_made_when_they_are_first_named(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    event = first.streams.record("compute")
    first.streams.wait("out", event)
    assert first.streams.copy(FakeTensor("x", GPU0), second.torch_device, "out", second.streams) == FakeTensor(
        "x", GPU1
    )
    first.streams.hold(FakeTensor("x", GPU0), "out")
    first.streams.record("out")
    first.streams.record("back")
    second.streams.wait("compute", event)
    assert streams.log == [
        "s0.1 records s0.1.1",
        "s0.2 waits for s0.1.1",
        "s0.2 copies x to cuda:1 into memory of s1.2",
        "s0.2 protects x",
        "s0.2 records s0.2.1",
        "s0.3 records s0.3.1",
        "s1.1 waits for s0.1.1",
    ]


def test_sending_and_receiving_leave_the_streams_alone(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    tensor = FakeTensor("x", GPU0)
    assert second.receive(first.send(tensor, second)) is tensor
    assert streams.log == []


def test_marks_lie_on_the_compute_stream(devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams) -> None:
    first = devices[0]
    begin, end = first.now(), first.now()
    first.synchronize()
    assert streams.log == ["s0.1 records timed", "s0.1 records timed", "host waits for s0.1"]
    assert first.elapsed_s(begin, end) == pytest.approx(1e-3)


def test_synchronizing_waits_for_what_others_enqueued(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    devices[1].drain()
    assert streams.log == ["host waits for device 1"]


def test_parts_of_one_gpu_have_streams_of_their_own(streams: FakeStreams) -> None:
    first, second = CudaDevice(0, streams, part=0), CudaDevice(0, streams, part=1, copies="forced")
    assert (first.name, second.name) == ("cuda:0/0", "cuda:0/1")
    assert first.torch_device == second.torch_device
    assert (first.streams.copies_here, second.streams.copies_here) == (False, True)
    assert [line for line in streams.log if "s0" in line] == ["s0.1 is current", "s0.2 is current"]
    first.close()
    second.close()


def test_a_pause_is_enqueued_on_the_compute_stream(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    devices[0].pause(0.5)
    assert streams.log == ["s0.1 pauses for 0.5 s"]


def test_copies_are_forced_or_free(streams: FakeStreams) -> None:
    with pytest.raises(InputError, match="copies is 'never'; use free or forced"):
        CudaDevice(0, streams, part=0, copies="never")


def test_a_device_that_is_not_here() -> None:
    with pytest.raises(InputError, match="device 'cuda:2' is not here: torch sees 2 CUDA devices; use cpu:0"):
        CudaDevice(2, FakeStreams())
    with pytest.raises(InputError, match="device 'cuda:0' is not here: torch sees no CUDA device"):
        CudaDevice(0, FakeStreams(count=0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_torch_sees_none() -> None:
    assert StreamBackend("cuda").device_count() == 0
    with pytest.raises(InputError, match="torch sees no CUDA device"):
        CudaDevice(0)


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_device_types(product: str, expected: str) -> None:
    assert type_of_name(product) == expected


# Every event is recorded again once it was given back, and those that are still awaited are not.
def test_events_are_used_again(devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams) -> None:
    one, other = devices[0].streams.record("compute"), devices[0].streams.record("compute")
    assert streams.events == 2
    devices[0].streams.events.give_back([one])
    assert devices[0].streams.record("copy") is one
    assert devices[0].streams.record("copy") not in (one, other)
    assert devices[1].streams.record("copy") is not other
    assert streams.events == 4


# A stand-in that takes other arguments than the real one could not fail.
@pytest.mark.parametrize("stand_in", [FakeStreams, HostStreams])
def test_stand_ins_take_what_the_backend_takes(stand_in: type) -> None:
    for name, method in vars(StreamBackend).items():
        if not name.startswith("_"):
            real, ours = inspect.signature(method).parameters, inspect.signature(getattr(stand_in, name)).parameters
            assert list(real) == list(ours), name
            assert [one.default for one in real.values()] == [one.default for one in ours.values()], name
