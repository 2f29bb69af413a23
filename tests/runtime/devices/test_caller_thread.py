"""Ops on the thread of who waits for them: on its core, in the modes of a device, and nothing is left behind."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, branches_on_one, placed_branches
from runtime.random_plans import needs_two_cores
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import dlplacer as dp
from dlplacer.core.errors import InputError
from dlplacer.measure.selftest.random_plan import random_plan
from dlplacer.runtime.devices import caller_thread
from dlplacer.runtime.devices.caller_thread import SHORT_S, ShortCalls, call_on_core
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.placed.placed_module import PlacedModule


@pytest.fixture
def core() -> Iterator[CpuDevice]:
    device = CpuDevice(0)
    yield device
    device.close()


def placed(processes: str, devices: int) -> PlacedModule:
    return placed_branches(processes) if devices == 2 else branches_on_one()


def state() -> tuple[object, ...]:
    modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    return (*modes, torch.get_num_threads(), os.sched_getaffinity(0))


def caller_of(core: CpuDevice) -> str:
    """Name of the thread that does what the calling thread waits for."""
    return core.call(lambda: threading.current_thread().name)


def test_the_main_thread_does_itself_what_it_waits_for(core: CpuDevice) -> None:
    before = state()
    assert core.call(lambda: (threading.current_thread(), state()[3:])) == (threading.main_thread(), (1, {core.core}))
    assert state() == before


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, call, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16), partial(torch.device, "cpu"), Dispatched],
)
def test_a_device_does_itself_what_the_modes_of_its_caller_would_change(
    core: CpuDevice, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    with mode():
        assert caller_of(core) == "cpu:0"
    assert caller_of(core) == "MainThread"


def test_threads_have_a_device_in_turn(core: CpuDevice) -> None:
    begun, may_end = threading.Event(), threading.Event()
    other = core.submit(lambda: (begun.set(), may_end.wait(10)))
    begun.wait()
    later = threading.Timer(0.05, may_end.set)
    later.start()
    # The device is at work for somebody else: what is called now comes after that, on the device's thread.
    assert core.call(lambda: (threading.current_thread().name, may_end.is_set())) == ("cpu:0", True)
    assert other.result()
    assert caller_of(core) == "MainThread"


def test_what_takes_long_runs_on_the_thread_of_the_device(core: CpuDevice) -> None:
    calls, pause_s = ShortCalls(), [0.0]

    def work() -> str:
        time.sleep(pause_s[0])
        return threading.current_thread().name

    # The first call may take long; then it is as the last one was.
    assert [calls.call(core, work) for _ in range(2)] == ["cpu:0", "MainThread"]
    pause_s[0] = 1.5 * SHORT_S
    assert [calls.call(core, work) for _ in range(2)] == ["MainThread", "cpu:0"]


def test_a_ctrl_c_waits_for_the_end_of_what_is_short(core: CpuDevice) -> None:
    before, done = state(), []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        core.call(work)
    assert done
    assert state() == before


def test_another_thread_leaves_it_to_the_device(core: CpuDevice) -> None:
    names: list[str] = []
    caller = threading.Thread(target=lambda: names.append(core.call(lambda: threading.current_thread().name)))
    caller.start()
    caller.join()
    assert names == ["cpu:0"]


def test_a_closed_device_does_nothing() -> None:
    device = CpuDevice(0)
    device.close()
    with pytest.raises(InputError, match="'cpu:0' is closed; apply the plan again"):
        device.call(lambda: None)


def test_what_fails_leaves_the_thread_as_it_was(core: CpuDevice) -> None:
    before = state()
    with pytest.raises(ZeroDivisionError):
        core.call(lambda: 1 // 0)
    assert state() == before
    assert caller_of(core) == "MainThread"


def test_a_system_that_keeps_no_thread_on_a_core_runs_it_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(caller_thread, "_PINS", False)
    assert call_on_core(0, lambda: (torch.get_num_threads(), os.sched_getaffinity(0))) == (1, before)
    assert os.sched_getaffinity(0) == before


@needs_two_cores
@pytest.mark.parametrize(("processes", "devices"), [("off", 1), ("off", 2), ("on", 2)])
def test_the_modes_of_the_caller_are_not_those_of_a_step(processes: str, devices: int) -> None:
    """What is first run in inference mode runs in any other mode afterwards, and trains."""
    with closing(placed(processes, devices)) as module:
        module.eval()
        with torch.inference_mode():
            in_inference_mode = module(ROWS)
        with torch.device("cpu"):
            for _ in range(2):
                assert torch.equal(in_inference_mode, module(ROWS))
        with torch.no_grad():
            without_gradients = module(ROWS)
        assert torch.equal(in_inference_mode, without_gradients)
        assert not without_gradients.is_inference()
        module.train()
        module.step(ROWS, LABELS)
        gradients = [one.grad for one in module.parameters() if one.grad is not None]
        assert gradients
        assert not any(one.is_inference() for one in gradients)
    with closing(placed("off", 2)) as plain:
        plain.step(ROWS, LABELS)
        expected = [one.grad for one in plain.parameters() if one.grad is not None]
    assert all(map(torch.equal, gradients, expected))


class Precise(nn.Module):
    """A layer that is computed in float32 whatever the caller wants, behind one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.first(rows)
        with torch.autocast("cpu", enabled=False):
            return self.second(hidden.float())


@needs_two_cores
@pytest.mark.parametrize(("processes", "devices"), [("off", 1), ("off", 2), ("on", 2)])
def test_autocast_of_the_caller_changes_no_op(processes: str, devices: int) -> None:
    """The casts are in the captured step; inside autocast torch would make more of them."""
    torch.manual_seed(1)
    job = dp.Job(Precise(), (ROWS,), (LABELS,), functional.cross_entropy, autocast="bfloat16")
    plan = dp.place(job, "cpu-2core", method="single").plan
    plan = plan if devices == 1 else random_plan(plan.graph, plan.topology, 3)
    with closing(dp.apply(job, plan, "cpu:0,cpu:1", processes=processes)) as module:
        outside = module.step(ROWS, LABELS)
        with torch.autocast("cpu", torch.bfloat16):
            inside = module.step(ROWS, LABELS)
            assert torch.is_autocast_enabled("cpu")
    assert torch.equal(outside, inside)
