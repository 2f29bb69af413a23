"""Op times beside processes that work on the other cores."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.profile import beside_processes as module
from dlplacer.runtime.profile.beside_processes import times_beside_processes


@needs_two_cores
def test_they_are_measured_with_processes_that_end() -> None:
    job, cores = build("branches"), [CpuDevice(0), CpuDevice(1)]
    try:
        captured = capture_job(job, default_rewrites())
        found = times_beside_processes(job, captured, cores, 3)
        assert found is not None
        assert [times.keys() for times in found] == [captured.graph.index.keys()] * 2
        assert times_beside_processes(job, captured, cores[:1], 3) is None
    finally:
        for core in cores:
            core.close()


class Cores:
    """Neighbours by which a step takes longer, if they can be had."""

    takes = 2.0
    now = 1.0

    def __init__(self, *arguments: Any) -> None:
        pass

    @contextmanager
    def busy(self, positions: Any) -> Any:
        assert list(positions) == [1, 2]
        if not self.takes:
            raise RunError("no process")
        Cores.now = self.takes
        yield
        Cores.now = 1.0

    def close(self) -> None:
        pass


class Steps:
    """A step of two ops, which take longer beside neighbours."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def step(self) -> Any:
        return (SimpleNamespace(op_times_s={"a": Cores.now, "b": 3 * Cores.now}),)


@pytest.mark.parametrize(("takes", "found"), [(2.0, ({"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 6.0})), (0.0, None)])
def test_they_are_of_steps_while_others_work(takes: float, found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BusyCores", Cores)
    monkeypatch.setattr(module, "Profiler", Steps)
    monkeypatch.setattr(module, "why_no_processes", lambda devices: None)
    monkeypatch.setattr(Cores, "takes", takes)
    monkeypatch.setattr(module, "_AT_LEAST_S", 0.0)
    cores = [cast(CpuDevice, CpuDevice.__new__(CpuDevice)) for _ in range(3)]
    assert times_beside_processes(cast(Any, None), cast(Any, None), cores, 4) == found


def test_steps_that_do_not_agree_are_taken_longer() -> None:
    steady, unsteady = [1.1, 1.12] * 20, [1.0, 2.0] * 20
    assert not module._are_enough(steady, 0.9 * module._AT_LEAST_S)
    assert module._are_enough(steady, module._AT_LEAST_S)
    assert not module._are_enough(unsteady, module._AT_LEAST_S)
    assert module._are_enough(unsteady, 1.01 * module._AT_MOST_S)
    assert module._are_enough(unsteady * 100, module._AT_LEAST_S)
