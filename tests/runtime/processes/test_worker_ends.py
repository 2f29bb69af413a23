"""Failures in workers are named, and no process outlives what it works for."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, placed, placed_branches, worker_of
from torch import nn

import dlplacer as dp


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def require_end(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(pid)


def test_closing_ends_the_workers():
    module = placed_branches("on")
    module.step(ROWS, LABELS)
    pid = worker_of(module)
    assert is_running(pid)
    module.close()
    assert not is_running(pid)


def test_dropping_the_module_ends_the_workers():
    module = placed_branches("on")
    module.step(ROWS, LABELS)
    pid = worker_of(module)
    del module
    gc.collect()
    require_end(pid)


def test_a_variant_that_is_dropped_ends_its_workers():
    """At once: a cache of variants bounds the number of processes."""
    module = placed_branches("on")
    module.step(ROWS[:5], LABELS[:5])
    other = worker_of(module)
    module.step(ROWS, LABELS)
    own = worker_of(module)
    module._variants.keep(lambda edition: False)
    assert not is_running(other)
    assert is_running(own)
    module.close()


@pytest.mark.parametrize("program", ["step", "forward"])
def test_a_killed_worker_is_named_and_replaced(program):
    module, threads = placed_branches("on"), placed_branches("off")
    take = {"step": lambda one: one.step(ROWS, LABELS), "forward": lambda one: one(ROWS, LABELS)}[program]
    for one in (module, threads):
        take(one)
    first = worker_of(module)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(dp.RunError, match=r"process of device 'cpu:1' was killed \(SIGKILL\)"):
        take(module)
    module.eval()
    threads.eval()
    assert torch.equal(module(ROWS), threads(ROWS))
    module.train()
    take(module)
    assert worker_of(module) != first
    module.close()
    threads.close()


def test_a_worker_killed_between_forward_and_backward_is_reported():
    module = placed_branches("on")
    loss = module(ROWS, LABELS)
    os.kill(worker_of(module), signal.SIGKILL)
    with pytest.raises(dp.RunError, match="process of device 'cpu:1' was killed"):
        loss.backward()
    other = module(ROWS, LABELS)
    other.backward()
    module.close()


def test_a_system_without_room_for_a_process_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(
        dp.RunError, match=r"no process can be made for core \d+: Resource temporarily unavailable; .*off"
    ):
        placed_branches("on").step(ROWS, LABELS)


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table(rows)) @ torch.ones(5)


def test_an_op_that_fails_in_a_worker_is_named_as_with_threads():
    job = dp.Job(Looked(), args=(torch.arange(4),), mode="infer")
    messages = []
    for processes in ("off", "on"):
        for seed in range(40):
            module = placed(job, processes, seed)
            if module.plan.placement["embedding"] == list(module.plan.order)[1]:
                break
            module.close()
        good = module(torch.arange(4))
        with pytest.raises(dp.RunError) as caught:
            module(torch.tensor([0, 1, 2, 9]))
        messages.append(str(caught.value))
        # The worker lives on.
        assert torch.equal(module(torch.arange(4)), good)
        module.close()
    assert messages[0] == messages[1]
    assert "op 'embedding' of module 'table' failed on cpu:1: index out of range" in messages[1]


class Folded(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tanh(rows).sum()


def test_an_input_that_cannot_be_handed_over_is_reported():
    """A slot has room for 16 dimensions: the workers, which were asked nothing, are not waited for."""
    job = dp.Job(Folded(), args=(torch.ones((2, *(1,) * 16)),), mode="infer")
    for seed in range(40):
        module = placed(job, "on", seed)
        if len(set(module.plan.placement.values())) > 1 and module.plan.placement["tanh"] == list(module.plan.order)[1]:
            break
        module.close()
    for _ in range(2):
        with pytest.raises(dp.RunError, match=r'17 dimensions, .*: apply the plan with processes="off"'):
            module(*job.args)
    module.close()


TESTS = Path(__file__).parents[2]
PARENT = """
import signal, sys, time, torch
# What runs in the background of a shell is started with Ctrl-C ignored, and so are all its processes.
signal.signal(signal.SIGINT, signal.default_int_handler)
from runtime.processes.small_jobs import LABELS, ROWS, placed_branches, worker_of
module = placed_branches("on")
module.step(ROWS, LABELS)
print(worker_of(module), flush=True)
while True:
    module.step(ROWS, LABELS) if sys.argv[1] == "busy" else time.sleep(1)
"""


@pytest.mark.parametrize(
    ("end", "state"),
    [(signal.SIGKILL, "busy"), pytest.param(signal.SIGKILL, "idle", marks=pytest.mark.slow), (signal.SIGINT, "busy")],
)
def test_workers_end_with_their_parent(end, state):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, state],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))},
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        time.sleep(0.05)
        parent.send_signal(end)
        parent.wait(60)  # within two seconds on two quiet cores, ten where four others run on each
        require_end(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_steps_leave_nothing_behind():
    """200 steps: no file, no process, no memory; half of the losses are never differentiated."""
    module = placed_branches("on")

    def steps(count: int) -> None:
        for number in range(count):
            loss = module(ROWS, LABELS)
            if number % 2:
                loss.backward()

    steps(20)
    pid = worker_of(module)
    before = held(os.getpid()), held(pid)
    steps(200)
    after = held(os.getpid()), held(pid)
    for (files, pages), (files_before, pages_before) in zip(after, before, strict=True):
        assert files == files_before
        assert pages - pages_before < 512  # 2 MiB; a kept forward pass would be 200 times its values
    assert worker_of(module) == pid
    module.close()


def held(pid: int) -> tuple[int, int]:
    """Open files and resident pages of a process."""
    with open(f"/proc/{pid}/statm", encoding="utf-8") as status:
        return len(os.listdir(f"/proc/{pid}/fd")), int(status.read().split()[1])


def test_an_idle_worker_takes_no_processor_time():
    module = placed_branches("on")
    module.step(ROWS, LABELS)
    pid = worker_of(module)
    time.sleep(0.1)
    before = processor_ticks(pid)
    time.sleep(0.5)
    assert processor_ticks(pid) - before <= 1
    module.close()


def processor_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as status:
        fields = status.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
