"""A run: who waits when it is given up, what its record says, and what the caller may change once it is issued."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.host_streams import HostStreams
from runtime.random_plans import needs_two_cores, placed_at_random

from dlplacer.runtime.devices.base import Reply, RuntimeDevice
from dlplacer.runtime.devices.cuda import CudaDevice, as_input
from dlplacer.runtime.executor.run import (
    AbortedError,
    CallerOrder,
    DeviceTimeline,
    ProgramRun,
    StepInputs,
    StepState,
)


class Clock:
    """A device whose marks are the given seconds."""

    def __init__(self, *times_s: float) -> None:
        self.times_s = list(times_s)

    def now(self) -> float:
        return self.times_s.pop(0)

    def elapsed_s(self, begin: float, end: float) -> float:
        return end - begin


# Begins at 10; a ends at 12; a tensor arrives at 15 after waiting; b ends at 16.
def test_waiting_counts_to_no_op() -> None:
    clock, timeline = cast(RuntimeDevice, Clock(10.0, 12.0, 15.0, 16.0)), DeviceTimeline()
    timeline.begin(clock)
    timeline.finish("a", clock)
    timeline.resume(clock)
    timeline.finish("b", clock)
    assert timeline.spans(clock) == [("a", 0.0, 2.0), ("b", 5.0, 6.0)]


@pytest.mark.timeout(10)
def test_nobody_waits_in_a_run_that_is_given_up() -> None:
    cell: Reply[Any] = Reply()
    ProgramRun(StepState(StepInputs({}, 0), {}), {("x", "d1"): cell}).give_up()
    with pytest.raises(AbortedError):
        cell.result()


@needs_two_cores
def test_a_recorded_step_holds_every_op_once_in_the_planned_order() -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        placed.step(*job.args, *job.targets)
        assert placed.timelines == {}
        placed.records = True
        placed.step(*job.args, *job.targets)
        for name, timeline in placed.timelines.items():
            spans = timeline.spans(placed.devices[name])
            assert [op for op, _, _ in spans] == list(placed.plan.order[name])
            assert all(before[2] <= start_s <= end_s for before, (_, start_s, end_s) in pairwise(spans))


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
