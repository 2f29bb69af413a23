"""The order of what a CUDA device enqueues, on a backend without a GPU."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from devices.fake_streams import FakeStreams, FakeTensor

from dlplacer.devices.cuda import CudaDevice, Parcel, TorchStreams, device_type
from dlplacer.errors import InputError

CPU = SimpleNamespace(name="cpu:0", torch_device=torch.device("cpu"))


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


# The copy stream waits for what computes the tensor and the compute stream goes on; at the other end the compute stream
# waits for the copy, and only then may the memory be used, and be given back.
def test_a_copy_waits_for_the_computation_and_the_computation_for_the_copy(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    parcel = first.send(FakeTensor("x", "cuda:0"), second)
    assert streams.log == [
        "s0.1 records s0.1.1",
        "s0.2 waits for s0.1.1",
        "s0.2 copies x to cuda:1",
        "s0.2 records s0.2.1",
    ]
    streams.log.clear()
    assert second.receive(parcel) == FakeTensor("x", "cuda:1")
    assert streams.log == ["s1.1 waits for s0.2.1", "s1.1 protects x"]


def test_every_target_has_a_copy_stream_of_its_own(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    third = SimpleNamespace(name="cuda:2", torch_device=torch.device("cuda", 2))
    for target in (second, third, second):
        first.send(FakeTensor("x", "cuda:0"), target)
    copies = [line for line in streams.log if "copies" in line]
    assert copies == ["s0.2 copies x to cuda:1", "s0.3 copies x to cuda:2", "s0.2 copies x to cuda:1"]


def test_a_copy_to_the_host_is_handed_over_when_it_is_there(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    assert devices[0].send(FakeTensor("x", "cuda:0"), CPU) == FakeTensor("x", "cpu")
    assert streams.log[-2:] == ["s0.2 records s0.2.1", "host waits for s0.2.1"]


def test_a_tensor_from_the_host_is_protected_until_it_has_been_used(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    tensor = FakeTensor("x", "cuda:0")
    assert devices[0].receive(tensor) is tensor
    assert streams.log == ["s0.1 protects x"]


def test_an_edge_without_a_tensor_still_carries_its_order(
    devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams
) -> None:
    first, second = devices
    parcel = first.send(None, second)
    assert isinstance(parcel, Parcel)
    assert second.receive(parcel) is None
    assert streams.log == ["s0.1 records s0.1.1", "s1.1 waits for s0.1.1"]
    streams.log.clear()
    assert first.send(None, CPU) is None
    assert streams.log == ["s0.1 records s0.1.2", "host waits for s0.1.2"]
    assert first.receive(None) is None


def test_marks_lie_on_the_compute_stream(devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams) -> None:
    first = devices[0]
    begin, end = first.now(), first.now()
    first.synchronize()
    assert streams.log == ["s0.1 records timed", "s0.1 records timed", "host waits for s0.1"]
    assert first.elapsed_s(begin, end) == pytest.approx(1e-3)


def test_settling_waits_for_what_others_enqueued(devices: tuple[CudaDevice, CudaDevice], streams: FakeStreams) -> None:
    devices[1].settle()
    assert streams.log == ["host waits for device 1"]


def parts(streams: FakeStreams, copies: str) -> tuple[CudaDevice, CudaDevice]:
    pair = CudaDevice(0, streams, part=0, copies=copies), CudaDevice(0, streams, part=1, copies=copies)
    streams.log.clear()
    return pair


# Two logical devices of one GPU: no copy, but the reader's stream waits for the writer's, and holds the memory.
def test_parts_of_one_gpu_hand_tensors_over(streams: FakeStreams) -> None:
    first, second = parts(streams, "free")
    assert (first.name, second.name) == ("cuda:0/0", "cuda:0/1")
    assert first.torch_device == second.torch_device
    tensor = FakeTensor("x", "cuda:0")
    assert second.receive(first.send(tensor, second)) is tensor
    assert streams.log == ["s0.1 records s0.1.1", "s0.2 waits for s0.1.1", "s0.2 protects x"]
    first.close()
    second.close()


def test_parts_of_one_gpu_copy_if_they_are_told_to(streams: FakeStreams) -> None:
    first, second = parts(streams, "forced")
    parcel = first.send(FakeTensor("x", "cuda:0"), second)
    assert streams.log[1:] == ["s0.3 waits for s0.1.1", "s0.3 copies x to cuda:0", "s0.3 records s0.3.1"]
    assert second.receive(parcel) == FakeTensor("x", "cuda:0")
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
    assert TorchStreams().device_count() == 0
    with pytest.raises(InputError, match="torch sees no CUDA device"):
        CudaDevice(0)


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_device_types(product: str, expected: str) -> None:
    assert device_type(product) == expected
