"""torch's own data parallelism around a placed module: DistributedDataParallel works, FSDP2 as one unit too."""

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from replicas import farthest, part_of, trained
from runtime.random_plans import needs_two_cores, random_plan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.data_parallel import GroupPlan, plan_groups
from dlplacer.frontend import capture
from dlplacer.models import mlp
from dlplacer.runtime import apply

pytestmark = needs_two_cores


def wrapped_steps(wrap):
    """[rank] → parameters after 10 steps with `wrap(placed)`, each rank on its half of the batch."""
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)

    def work(rank: int):
        dist.init_process_group("gloo")
        job = part_of(mlp(batch_size=8), rank, 2)
        placed = apply(job, plan, ["cpu:0", "cpu:1"])
        model = wrap(placed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            model(*job.args, *job.targets).backward()
            optimizer.step()
        named = {name.removeprefix("module."): value for name, value in model.named_parameters()}
        return {name: whole(value).detach().clone() for name, value in named.items()}

    return run_ranks(2, work)


def groups() -> GroupPlan:
    """Some messages, not one."""
    devices = tuple(Device(f"cpu{number}", "box", flops_per_s=1e10, memory_bytes_per_s=1e9) for number in range(2))
    plan = plan_groups(mlp(batch_size=4), Topology(devices, (), (Link("cpu0", "cpu1", 1e8, 1e-6),)))
    assert len(plan.buckets) > 1
    assert len(plan.units) > 1
    return plan


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@pytest.mark.parametrize(
    "wrap",
    [
        torch.nn.parallel.DistributedDataParallel,
        lambda placed: torch.nn.parallel.DistributedDataParallel(placed, **groups().ddp_kwargs()),
        lambda placed: fully_shard(placed, mesh=init_device_mesh("cpu", (2,))),
    ],
    ids=["DistributedDataParallel", "planned buckets", "fully_shard"],
)
def test_training_equals_the_full_batch(wrap) -> None:
    _, expected = trained([mlp(batch_size=8)], steps=10)
    for parameters in wrapped_steps(wrap):
        assert farthest(parameters, expected) < 1e-6


def test_a_sub_module_that_is_sharded_alone_is_refused() -> None:
    def wrap(placed):
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(placed.hidden[0], mesh=mesh)
        return fully_shard(placed, mesh=mesh)

    for _, name, message in wrapped_steps(wrap):
        assert name == "MismatchError"
        assert "'hidden.0.weight' is a piece of a tensor (DTensor)" in message
        assert "fully_shard(placed)" in message
