"""A Ctrl-C at any place of a step is raised, harms no later step, and leaves nothing behind."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, branches_on_one, placed_branches
from runtime.processes.test_worker_ends import is_running
from runtime.signal_injection import interrupted_at, places

from dlplacer.planning.interrupt import kept_interrupts
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers

BOOKKEEPING = (
    r"dlplacer/(planning/interrupt|runtime/(executor|processes|devices)/)|<actions of a device>"
    r"|/(threading|contextlib|weakref|queue|warnings|concurrent/futures/_base|multiprocessing/connection|autograd/grad_mode)\.py$"
)
"""Where locks are taken, and what is begun has to be ended: the files of the places that are tried."""
STRIDE = 5
"""Of every so many places one is tried."""


@pytest.fixture(autouse=True)
def default_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, before)


def require_gone(pids: tuple[int, ...]) -> None:
    deadline = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not any(map(is_running, pids))


def step(module: PlacedModule) -> float:
    """The loss of one and the same step: the masks of dropout are those of its number."""
    module.steps_done = 5
    return float(module.step(ROWS, LABELS))


def forward_and_backward(module: PlacedModule) -> float:
    module.steps_done = 5
    loss = module(ROWS, LABELS)
    loss.backward()
    return float(loss.detach())


def evaluate(module: PlacedModule) -> float:
    """Without gradients, as evaluation goes."""
    module.eval()
    with torch.no_grad():
        found = float(module(ROWS).sum())
    module.train()
    return found


def now() -> tuple[object, ...]:
    """What a step changes for its time on the calling thread."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return (os.sched_getaffinity(0), torch.get_num_threads(), *modes)


def end_and_step(module: PlacedModule) -> float:
    """End the workers, and have a step fork others."""
    for variant in module._variants.values():
        variant.close()
    return step(module)


@pytest.mark.parametrize(
    ("processes", "call", "stride"),
    [
        ("one device", step, STRIDE),
        ("one device", forward_and_backward, STRIDE),
        ("one device", evaluate, STRIDE),
        ("off", step, STRIDE),
        ("on", step, STRIDE),
        pytest.param("on", forward_and_backward, STRIDE, marks=pytest.mark.slow),
        ("on", end_and_step, 3 * STRIDE),  # every step forks
        pytest.param("on", end_and_step, STRIDE, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_anywhere_in_a_step(processes: str, call: Callable[[PlacedModule], float], stride: int) -> None:
    module = branches_on_one() if processes == "one device" else placed_branches(processes)
    expected = call(module)
    settings = now()
    assert settings[2:] == (True, False)
    found = places(lambda: call(module), BOOKKEEPING)[::stride]
    struck = 0
    for number in found:
        before = module.worker_pids
        kept: KeyboardInterrupt | None = None
        try:
            assert not interrupted_at(number, lambda: call(module)), f"the Ctrl-C before instruction {number} was lost"
        except KeyboardInterrupt as error:
            # Whoever keeps it, as a notebook does, keeps the frames too in which it struck, and what these hold.
            kept = error
            struck += 1
        assert now() == settings
        assert call(module) == expected
        del kept
        assert now() == settings
        require_gone(tuple(set(before) - set(module.worker_pids)))
    assert struck > max(10, len(found) // 2)  # the number of instructions varies a little, with the turns of waiting
    left = module.worker_pids
    module.close()
    require_gone(left)


def test_all_workers_are_ended_by_an_interrupted_close() -> None:
    def workers() -> list[WorkerHandle]:
        made = []
        for _ in range(2):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            os.close(writer)
            made.append(WorkerHandle("cpu:1", pid, os.fdopen(reader)))  # type: ignore[arg-type]
        return made

    def ended(every: list[WorkerHandle]) -> None:
        end_workers(every)

    first = workers()
    for number in places(lambda: ended(first)):
        every = workers()
        with pytest.raises(KeyboardInterrupt):
            interrupted_at(number, lambda every=every: ended(every))
        if not every[0].connection.closed:
            end_workers(every)  # the Ctrl-C came before its first line
        assert not any(is_running(worker.pid) for worker in every)


class Trap:
    """Meets a Ctrl-C where Python drops it."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_ctrl_c_that_python_drops_is_raised_when_the_context_is_left() -> None:
    reached = []

    @kept_interrupts()
    def drop() -> None:
        Trap()
        reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert reached


@pytest.mark.parametrize("processes", ["off", "on"])
def test_a_step_raises_a_ctrl_c_that_python_drops(processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = placed_branches(processes)
    step(module)
    current = module._editions.current
    with monkeypatch.context() as patch:
        patch.setattr(module._editions, "current", lambda: (Trap(), current())[1])
        with pytest.raises(KeyboardInterrupt):
            module.step(ROWS, LABELS)
        with pytest.raises(KeyboardInterrupt):
            module(ROWS, LABELS)
    assert torch.isfinite(module.step(ROWS, LABELS))
    module.close()
