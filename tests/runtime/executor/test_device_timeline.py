"""What a recorded step says about its ops."""

from itertools import pairwise
from typing import Any, cast

from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random

from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.run import DeviceTimeline, OpSpan


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
    assert timeline.spans(clock) == [OpSpan("a", 0.0, 2.0), OpSpan("b", 5.0, 6.0)]


def test_a_device_without_a_program_has_no_spans() -> None:
    timeline = DeviceTimeline()
    assert timeline.spans(cast(RuntimeDevice, Clock())) == []
    assert timeline.started_ns == 0


@needs_two_cores
def test_a_recorded_step_holds_every_op_once_in_the_planned_order() -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        placed.step(*job.args, *job.targets)
        assert placed.timelines == {}
        placed.records = True
        placed.step(*job.args, *job.targets)
        for name, timeline in placed.timelines.items():
            spans: list[Any] = timeline.spans(placed.devices[name])
            assert [span.op for span in spans] == list(placed.plan.order[name])
            assert all(before.end_s <= after.start_s <= after.end_s for before, after in pairwise(spans))
