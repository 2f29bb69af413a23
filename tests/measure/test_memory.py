"""A model that fits on no single device is profiled and run without a copy of it anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from runtime.random_plans import needs_two_cores
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import dlplacer as dp
from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.run_plan import run
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.devices.open import KINDS
from dlplacer.runtime.profile.op_times import profile_ops

pytestmark = needs_two_cores
SIZE, LAYERS, BATCH = 1024, 6, 64


class Allocated(TorchDispatchMode):
    """Bytes of the tensors that a thread has made and that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves((args, kwargs)) if is_real(leaf)}
        found = func(*args, **(kwargs or {}))
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        for leaf in filter(is_real, pytree.tree_leaves(found)):
            storage = leaf.untyped_storage()
            if storage._cdata not in given:
                self.live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self.live.values()))
        return found


def is_real(leaf: object) -> bool:
    return type(leaf) in (torch.Tensor, nn.Parameter) and leaf.device.type == "cpu"


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> dict[str, Allocated]:
    """Device → what its thread allocates, once it is opened."""
    counters: dict[str, Allocated] = {}

    def opened(index: int, part: int | None = None, copies: str = "free") -> CpuDevice:
        device = CpuDevice(index)
        counters[device.name] = Allocated()
        device.submit(counters[device.name].__enter__).result()
        return device

    monkeypatch.setitem(KINDS, "cpu", replace(KINDS["cpu"], open=opened))
    return counters


def job(size: int = SIZE) -> dp.Job:
    torch.manual_seed(0)
    module = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(size, size), nn.ReLU())))
    return dp.Job(module, (torch.randn(BATCH, size),), (torch.randn(BATCH, size),), nn.functional.mse_loss)


def planned(job: dp.Job, share: float) -> Plan:
    """On two cores with a share of what the model needs in all."""
    graph = dp.capture(job)
    graph = replace(graph, ops=tuple(replace(op, time_s=1e-3 if op.dtype else 0.0) for op in graph.ops))
    limit = int(share * sum(op.footprint_bytes for op in graph.ops))
    devices = tuple(dp.Device(name, "cpu-core", memory_bytes=limit) for name in ("d0", "d1"))
    machine = dp.Topology(devices, (), (dp.Link("d0", "d1", 1e9, 1e-6),))
    # Cores hand tensors over as they are: one that is sent and kept there counts where it was made, and here few are.
    return dp.place(graph, machine, method="contiguous").plan


@contextmanager
def counted() -> Iterator[Allocated]:
    with Allocated() as counter:
        yield counter


def weights_bytes(plan: Plan, device: str) -> int:
    return sum(op.weight_bytes for op in plan.graph.ops if plan.placement[op.id] == device)


def test_a_run_needs_no_more_memory_than_planned(allocated: dict[str, Allocated]) -> None:
    plan = planned(job(), 0.85)
    with counted() as caller:
        done = run(job(), plan, ["cpu:0", "cpu:1"], steps=1, warmup=0)
    taken_bytes = {
        device: weights_bytes(plan, device) + allocated[name].peak_bytes
        for name, device in (("cpu:0", "d0"), ("cpu:1", "d1"))
    }
    for device, of_device in taken_bytes.items():
        assert of_device <= 1.1 * plan.memory[device].peak_bytes
    # The caller makes the model, its inputs, and for each device what stands for received tensors.
    beside_bytes = caller.peak_bytes - sum(op.weight_bytes for op in plan.graph.ops)
    planned_bytes = sum(memory.peak_bytes for memory in plan.memory.values())
    assert sum(taken_bytes.values()) + beside_bytes <= 1.1 * planned_bytes
    report = done.report
    assert report.left_out == ("plain PyTorch: the model fits on no single device",)
    assert (report.baseline_s, report.max_abs_error, report.measured_speedup) == (None, None, None)
    assert report.measured_s > 0
    assert report.predicted_s > 0
    assert "fits on no single one" in report.conclusion
    assert "null" not in repr(done)


def test_a_model_that_fits_is_compared_with_plain_pytorch() -> None:
    report = run(job(64), planned(job(64), 1.1), ["cpu:0", "cpu:1"], steps=1, warmup=0).report
    assert report.left_out == ()
    assert report.max_abs_error < 1e-5


def test_a_profile_in_parts_stays_within_its_memory(allocated: dict[str, Allocated]) -> None:
    from dlplacer.runtime.devices.open import open_devices

    made = job()
    captured = capture_job(made, default_rewrites())
    limit_bytes = sum(op.footprint_bytes for op in captured.graph.ops) // 3
    devices = open_devices(["cpu:0", "cpu:1"])
    try:
        times = profile_ops(made, captured, devices, steps=1, warmup=0, memory_bytes=limit_bytes)["cpu-core"]
    finally:
        for device in devices:
            device.close()
    assert times.keys() == captured.graph.index.keys()
    assert all(times[op.id] > 0 for op in captured.graph.ops if op.kind.startswith("aten"))
    assert max(counter.peak_bytes for counter in allocated.values()) <= 1.1 * limit_bytes
