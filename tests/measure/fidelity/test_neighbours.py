"""Steps on one core while processes keep the others busy."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores

from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.fidelity.neighbours import NeighbourProfiler
from dlplacer.runtime.devices.cpu import CpuDevice


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


class Timed:
    """A profiler whose steps note which neighbours are busy."""

    def __init__(self, busy: list[int]) -> None:
        self.busy, self.seen = busy, []  # type: ignore[var-annotated]

    def plain_steps(self, positions: list[int]) -> list[float]:
        self.seen.append((tuple(positions), tuple(self.busy)))
        return [1.0]


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
    assert profiler.plain_steps([0, 2, 3]) == [1.0] * 3
    assert timed.seen == [((0,), (2, 3)), ((2,), (0, 3)), ((3,), (0, 2))]
