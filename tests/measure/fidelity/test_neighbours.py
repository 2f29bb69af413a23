"""Steps on one core while processes keep the others busy."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

import pytest
from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores

from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.fidelity.neighbours import CallerProfiler, NeighbourProfiler
from dlplacer.measure.fidelity.step_profiler import PlainStep
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.processes.inline_device import InlineDevice


@needs_two_cores
def test_steps_alone_and_beside_neighbours() -> None:
    job, cores = build("branches"), [CpuDevice(0), CpuDevice(1)]
    try:
        with closing(NeighbourProfiler(job, capture_job(job, default_rewrites()), cores)) as profiler:
            assert len(profiler.plain_steps([0])) == 1
            first, second = profiler.recorded_steps([0, 1])
            assert first.op_times_s.keys() == second.op_times_s.keys()
            assert len(profiler.plain_steps([0, 1])) == 2
    finally:
        for core in cores:
            core.close()


@needs_two_cores
def test_steps_run_on_the_calling_thread_and_on_their_core(monkeypatch: pytest.MonkeyPatch) -> None:
    job, cores, before = build("branches"), [CpuDevice(0), CpuDevice(1)], os.sched_getaffinity(0)
    seen: list[tuple[int, set[int]]] = []

    def spied(do: Callable[[InlineDevice, Any], Any]) -> Callable[[InlineDevice, Any], Any]:
        def spying(device: InlineDevice, work: Callable[[], Any]) -> Any:
            seen.append((threading.get_ident(), os.sched_getaffinity(0)))
            return do(device, work)

        return spying

    for name in ("submit", "call"):
        monkeypatch.setattr(InlineDevice, name, spied(getattr(InlineDevice, name)))
    try:
        profiler = CallerProfiler(job, capture_job(job, default_rewrites()), cores)
        profiler.plain_steps([1])
        assert seen
        assert all(one == (threading.get_ident(), {cores[1].core}) for one in seen)
        seen.clear()
        profiler.recorded_steps([0])
        assert seen
        assert all(one == (threading.get_ident(), {cores[0].core}) for one in seen)
        assert os.sched_getaffinity(0) == before
    finally:
        for core in cores:
            core.close()


class Timed:
    """A profiler whose steps note which neighbours are busy."""

    def __init__(self, busy: list[int]) -> None:
        self.busy, self.seen = busy, []  # type: ignore[var-annotated]

    def plain_steps(self, positions: list[int]) -> list[PlainStep]:
        self.seen.append((tuple(positions), tuple(self.busy)))
        return [PlainStep(1.0)]


class Told:
    """Neighbours that are no processes."""

    def __init__(self) -> None:
        self.now: list[int] = []

    @contextmanager
    def busy(self, positions: Sequence[int]) -> Iterator[None]:
        self.now += positions
        yield
        self.now.clear()


def test_devices_are_timed_one_by_one_beside_all_others() -> None:
    told = Told()
    timed = Timed(told.now)
    profiler = NeighbourProfiler(cast(Any, None), cast(Any, None), [], cast(Any, timed))
    profiler.neighbours = cast(Any, told)
    assert profiler.plain_steps([0, 2, 3]) == [PlainStep(1.0)] * 3
    assert timed.seen == [((0,), (2, 3)), ((2,), (0, 3)), ((3,), (0, 2))]
