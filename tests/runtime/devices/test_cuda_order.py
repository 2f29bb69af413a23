"""CUDA devices on simulated GPUs: their streams, the inputs of a step, and what is not here."""

import inspect

import pytest
from runtime.host_streams import HostStreams
from runtime.simulated_gpus import HOST, SimulatedGpus

from dlplacer.core.errors import InputError
from dlplacer.runtime.devices.cuda import COMPUTE_STREAM, CudaDevice, StreamBackend, as_input


def test_parts_of_one_gpu_have_streams_of_their_own() -> None:
    gpus = SimulatedGpus(0)
    backend = StreamBackend("cuda", gpus)
    first, second = CudaDevice(0, backend, part=0), CudaDevice(0, backend, part=1, copies="forced")
    assert (first.name, second.name) == ("cuda:0/0", "cuda:0/1")
    assert first.torch_device == second.torch_device
    assert (first.streams.copies_here, second.streams.copies_here) == (False, True)
    one, other = (device.submit(gpus.current_stream).result() for device in (first, second))
    assert one is not other
    assert one.index == other.index == 0
    first.close()
    second.close()


def test_a_device_that_is_not_here() -> None:
    with pytest.raises(InputError, match="device 'cuda:2' is not here: torch sees 2 CUDA devices; use cpu:0"):
        CudaDevice(2, StreamBackend("cuda", SimulatedGpus(0)))
    with pytest.raises(InputError, match="device 'cuda:0' is not here: torch sees no CUDA device"):
        CudaDevice(0, StreamBackend("cuda", SimulatedGpus(0, count=0)))


# A stand-in that takes other arguments than the real one could not fail.
def test_the_stand_in_takes_what_the_backend_takes() -> None:
    for name, method in vars(StreamBackend).items():
        if not name.startswith("_"):
            real, ours = inspect.signature(method).parameters, inspect.signature(getattr(HostStreams, name)).parameters
            assert list(real) == list(ours), name
            assert [one.default for one in real.values()] == [one.default for one in ours.values()], name


# Inputs are copied while earlier work goes on. The caller may change one at once, a pinned one once it has been read.
@pytest.mark.parametrize("pinned", [False, True])
def test_an_input_has_the_value_that_it_was_given_with(pinned: bool) -> None:
    for seed in range(40):
        gpus, seen = SimulatedGpus(seed), list[float]()
        device = CudaDevice(0, StreamBackend("cuda", gpus))
        given = gpus.empty(HOST, pinned)
        given.slot.value = 3.0
        held = [as_input(given, device)]
        device.streams.finish_reading()
        given.slot.value = 7.0
        begins = device.streams.caller_event()

        def step() -> None:
            device.streams.wait(COMPUTE_STREAM, begins)  # noqa: B023
            gpus.compute((held.pop(),), lambda values: seen.append(values[0]) or 0.0)  # noqa: B023

        device.submit(step).result()
        device.drain()
        device.close()
        assert seen == [3.0], seed
        assert gpus.blocked == 0
