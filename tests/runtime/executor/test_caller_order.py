"""What the caller may change when a step has been issued."""

from collections.abc import Iterator

import pytest
import torch
from runtime.host_streams import HostStreams

from dlplacer.runtime.devices.cuda import CudaDevice
from dlplacer.runtime.devices.streams import as_input
from dlplacer.runtime.executor.run import CallerOrder


class Pinned(torch.Tensor):
    """A tensor that says that it is in pinned memory."""

    def is_pinned(self, device: object = None) -> bool:
        return True


@pytest.fixture
def streams() -> HostStreams:
    return HostStreams()


@pytest.fixture
def parts(streams: HostStreams) -> Iterator[list[CudaDevice]]:
    """Two logical devices of one GPU."""
    found = [CudaDevice(0, streams, part) for part in range(2)]
    yield found
    for device in found:
        device.close()


# Pinned inputs are copied from where they are: whoever calls the step may change them once its call has returned.
@pytest.mark.parametrize("reader", [0, 1])
def test_a_pinned_input_of_any_device_has_been_read_when_a_step_returns(
    parts: list[CudaDevice], streams: HostStreams, reader: int
) -> None:
    as_input(torch.ones(4).as_subclass(Pinned), parts[reader])
    streams.log.clear()
    # The first step has none before it to wait for.
    order = CallerOrder(parts)
    order.begin()
    order.end()
    assert streams.log.count("sync") == 1
