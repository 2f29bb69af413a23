"""CPU devices: pinned threads that share memory."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runtime.random_plans import needs_two_cores

from dlplacer.core.errors import InputError
from dlplacer.machines.cores import usable_cores
from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.devices.base import Worker
from dlplacer.runtime.devices.cpu import CpuDevice

pinning = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice(0)
    yield opened
    opened.close()


def _some_parallel_work() -> int:
    """Ops that torch splits over threads where it may; how many it may use."""
    torch.randn(300, 300) @ torch.randn(300, 300)
    torch.randn(200_000).exp()
    torch.nn.functional.conv2d(torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3))
    return torch.get_num_threads()


@pinning
@needs_two_cores
def test_every_device_is_pinned_to_a_core_of_its_own() -> None:
    cores = usable_cores()
    first, second = open_devices(["cpu:0", "cpu:1"])
    try:
        pinned = [one.submit(lambda: os.sched_getaffinity(0)).result() for one in (first, second)]
        assert pinned == [{cores[0]}, {cores[1]}]
        assert usable_cores() == cores
        assert os.sched_getaffinity(0) == set(cores)
    finally:
        first.close()
        second.close()


# Torch keeps the number of threads per thread: a device's ops use one, the rest of the program what it used before.
@pytest.mark.parametrize("before", [1, 2])
def test_a_device_computes_with_one_thread_and_changes_nobody_elses(before: int) -> None:
    kept = torch.get_num_threads()
    torch.set_num_threads(before)
    device = CpuDevice(0)
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    try:
        assert torch.get_num_threads() == before
        assert later == [before]
        tasks = len(os.listdir("/proc/self/task"))
        assert device.submit(_some_parallel_work).result() == 1
        assert len(os.listdir("/proc/self/task")) <= tasks
    finally:
        device.close()
        torch.set_num_threads(kept)


@pytest.mark.timeout(60)
def test_a_ctrl_c_while_one_waits_leaves_the_thread_and_the_next_answer(device: CpuDevice) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for pause_s in (0.01, 0.03, 0.05):
            signal.setitimer(signal.ITIMER_REAL, pause_s)
            with pytest.raises(KeyboardInterrupt):
                device.submit(lambda: time.sleep(0.2)).result()
            assert device.submit(lambda: "answer").result() == "answer"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_closed_device_refuses_work() -> None:
    device = CpuDevice(0)
    ended: list[bool] = []
    device.submit(lambda: (time.sleep(0.01), ended.append(True)))
    device.close()
    assert ended
    with pytest.raises(InputError, match="device 'cpu:0' is closed"):
        device.submit(lambda: None)


def test_a_worker_that_cannot_be_prepared_raises_and_ends() -> None:
    def prepare() -> None:
        raise OSError("no such core")

    with pytest.raises(OSError, match="no such core"):
        Worker("broken", prepare)
    gc.collect()
    for thread in [thread for thread in threading.enumerate() if thread.name == "broken"]:
        thread.join(120)
        assert not thread.is_alive()


def test_freed_memory_stays_while_a_core_is_open_and_goes_back_when_the_last_is_closed(tmp_path: Path) -> None:
    script = tmp_path / "kept.py"
    script.write_text(
        """
import torch
from dlplacer.runtime.devices import open_devices
def resident_bytes():
    return 4096 * int(open("/proc/self/statm").read().split()[1])
def kept_by_a_freed_tensor(device):
    before = resident_bytes()
    device.submit(lambda: torch.ones(16 * 2**20)).result()
    return resident_bytes() - before > 48 * 2**20
first, = open_devices(["cpu:0"])
second, = open_devices(["cpu:0"])
first.close()
assert kept_by_a_freed_tensor(second)
held = resident_bytes()
second.close()
assert resident_bytes() < held - 48 * 2**20
"""
    )
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
