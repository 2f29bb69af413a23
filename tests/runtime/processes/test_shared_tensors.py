"""Tensors in shared memory: who shared a storage still does, and memory is given back with its tensors."""

import gc
from pathlib import Path

import torch
from runtime.processes.small_jobs import LABELS, placed
from torch import nn

import dlplacer as dp
from dlplacer.runtime.processes.shared_tensors import SharedTensors

MIB = 2**20


def shared_bytes() -> int:
    """Shared memory that this process has touched and still maps."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem"))
    return 1024 * int(line.split()[1])


def test_values_strides_and_common_storages_stay() -> None:
    base = torch.arange(40_000, dtype=torch.float64)
    whole, view = base.view(200, 200), base.view(200, 200).t()[3:]
    small = torch.arange(6.0).view(2, 3).t()
    kept = [tensor.clone() for tensor in (whole, view, small)]
    shared = SharedTensors()
    shared.share([whole, view, small, torch.empty(0)])
    assert all(map(torch.equal, (whole, view, small), kept))
    assert (view.stride(), small.stride()) == ((1, 200), (1, 3))
    whole[5, 7] = -1.0
    assert view[4, 5] == -1.0
    before = [tensor.data_ptr() for tensor in (whole, view, small)]
    shared.share([whole, view, small])
    assert [tensor.data_ptr() for tensor in (whole, view, small)] == before


def test_a_storage_begins_where_in_a_cache_line_it_did() -> None:
    buffer = bytearray(4096)
    aligned = -torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() % 64
    tensors = [torch.frombuffer(buffer, dtype=torch.float32, count=9, offset=aligned + at) for at in (4, 132, 300)]
    begins = [tensor.data_ptr() % 64 for tensor in tensors]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    SharedTensors().share(tensors)
    assert [tensor.data_ptr() % 64 for tensor in tensors] == begins == [4, 4, 44]
    assert [tensor.tolist() for tensor in tensors] == [[0.0] * 9, [1.0] * 9, [2.0] * 9]


def test_memory_goes_with_its_tensors_and_not_before() -> None:
    shared, before = SharedTensors(), shared_bytes()
    kept, swapped = torch.ones(4 * MIB), torch.ones(4 * MIB)
    shared.share([kept, swapped])
    assert shared_bytes() - before > 30 * MIB
    for _ in range(3):
        swapped = torch.ones(4 * MIB)
        shared.share([kept, swapped])
    assert shared_bytes() - before < 40 * MIB
    assert bool((kept == 1).all())
    del kept, swapped
    assert shared_bytes() - before < 8 * MIB


def test_a_module_that_is_swapped_out_takes_its_shared_memory_along() -> None:
    torch.manual_seed(0)
    rows = torch.randn(8, 12)
    module = nn.Sequential(nn.Linear(12, 60_000), nn.ReLU(), nn.Linear(60_000, 3))
    job = dp.Job(module, args=(rows,), targets=(LABELS,), loss=nn.functional.cross_entropy)
    running = placed(job, "on")
    try:
        held = []
        for _ in range(4):
            module[0], module[2] = nn.Linear(12, 60_000), nn.Linear(60_000, 3)
            running.zero_grad()
            running.step(rows, LABELS)
            gc.collect()
            held.append(shared_bytes())
        assert running.processes.used
        assert held[-1] - held[0] < MIB  # a generation has 3.6
    finally:
        running.close()
