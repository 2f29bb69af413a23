"""Planned groups are what torch really sends, and change no result: DDP and FSDP2 over two processes and gloo."""

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.distributed as dist
from data_parallel.model_zoo import ZOO
from data_parallel.wire import Wire
from processes import run_ranks
from replicas import part_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.data_parallel import GroupPlan, plan_groups
from dlplacer.data_parallel.groups.captured_chain import serial_clock
from dlplacer.frontend import Job
from dlplacer.machines.costs.roofline_times import with_times

# Torch warns of every module that returns a view, as an LSTM does.
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
RANKS = 2
SPECIAL = ("tied", "gpt", "unused", "mixed dtypes", "frozen")


def planned(job: Job) -> GroupPlan:
    """For two devices and a link that makes an exchange about as long as the backward pass, in some messages."""
    rates = {"flops_per_s": 1e10, "memory_bytes_per_s": 1e9}
    devices = tuple(Device(f"cpu{number}", "box", **rates) for number in range(RANKS))
    graph = with_times(job.capture(), Topology(devices))
    size = sum(op.weight_bytes for op in graph.ops if op.kind == "parameter")
    backward_s = max(end_s for _, end_s in serial_clock(graph, "box", "backward").values())
    machine = Topology(devices, (), (Link("cpu0", "cpu1", size / backward_s, backward_s / 40),))
    return plan_groups(job, machine, graph=graph)


def loss_of(model: nn.Module, job: Job) -> torch.Tensor:
    assert job.loss is not None
    loss = job.loss(model(*job.args), *job.targets)
    assert isinstance(loss, torch.Tensor)
    return loss


def averaged(job: Job) -> dict[str, torch.Tensor]:
    """The mean over the ranks of what plain PyTorch computes as gradients."""
    found: dict[str, torch.Tensor] = {}
    for rank in range(RANKS):
        model = copy.deepcopy(job.module)
        loss_of(model, part_of(job, rank, RANKS)).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[name] = found.get(name, 0) + parameter.grad / RANKS
    return found


def differences(model: nn.Module, wanted: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a gradient, relative to the largest element of that gradient."""
    worst = 0.0
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor):
            grad = grad.full_tensor()
        if name not in wanted:
            assert grad is None or not grad.abs().max(), name
            continue
        assert grad is not None, name
        scale = float(wanted[name].abs().max()) or 1.0
        worst = max(worst, float((grad - wanted[name]).abs().max()) / scale)
    return worst


def with_ddp(job: Job, plan: GroupPlan, rank: int) -> tuple[list[int], float]:
    """Bytes of the messages of a late step, and how far its gradients are from plain PyTorch's."""
    model = DistributedDataParallel(copy.deepcopy(job.module), **plan.ddp_kwargs())
    part = part_of(job, rank, RANKS)
    for _ in range(3 + bool(plan.unused)):
        model.zero_grad()
        with Wire() as wire:
            loss_of(model, part).backward()
    return wire.sizes("allreduce"), differences(model.module, averaged(job))


def gathered_bytes(model: nn.Module, plan: GroupPlan) -> list[int]:
    """The bytes of an all-gather of every unit: every parameter padded to equal parts along its first dimension."""
    tensors = dict(model.named_parameters())

    def padded(name: str) -> int:
        tensor = tensors[name]
        rows = tensor.shape[0] if tensor.dim() else 1
        return -(-rows // RANKS) * RANKS * (tensor.numel() // rows) * tensor.element_size()

    return [sum(map(padded, unit.parameters)) for unit in plan.units]


def with_fsdp(job: Job, plan: GroupPlan, rank: int) -> tuple[list[int], float]:
    """Bytes of the gathers of a forward pass, and how far the gradients are from plain PyTorch's."""
    mesh = init_device_mesh("cpu", (RANKS,))
    model = plan.fully_shard(copy.deepcopy(job.module), mesh=mesh)
    part = part_of(job, rank, RANKS)
    loss_of(model, part).backward()
    model.zero_grad()
    with Wire() as wire:
        loss = loss_of(model, part)
    loss.backward()
    return wire.sizes("allgather"), differences(model, averaged(job))


def sent(zoo: Mapping[str, tuple[Job, GroupPlan]]) -> Callable[[int], dict[str, object]]:
    def work(rank: int) -> dict[str, object]:
        dist.init_process_group("gloo")
        found = {}
        for name, (job, plan) in zoo.items():
            found[name] = {
                "planned": [bucket.bytes for bucket in plan.buckets],
                "ddp": with_ddp(job, plan, rank),
                "units": gathered_bytes(job.module, plan),
                "fsdp": with_fsdp(job, plan, rank),
            }
        return found

    return work


def assert_planned(*names: str) -> None:
    torch.manual_seed(3)
    jobs = {name: ZOO[name]() for name in names}
    zoo = {name: (job, planned(job)) for name, job in jobs.items()}
    for outcome in run_ranks(RANKS, sent(zoo), limit_s=600.0):
        assert isinstance(outcome, dict), outcome
        for name, found in outcome.items():
            (messages, ddp_error), (gathers, fsdp_error) = found["ddp"], found["fsdp"]
            assert messages == found["planned"], name
            assert gathers == found["units"], name
            tolerance = 0.02 if name == "mixed dtypes" else 1e-4
            assert ddp_error <= tolerance, name
            assert fsdp_error <= tolerance, name
        several = [name for name, found in outcome.items() if len(found["planned"]) > 1 and len(found["units"]) > 1]
        assert len(several) > len(outcome) / 2, several


def test_tied_unused_and_frozen_parameters_and_two_dtypes() -> None:
    assert_planned(*SPECIAL)
