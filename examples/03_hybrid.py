"""Hybrid training: two replicas, each over two devices, on gloo processes of this machine, beside plain training.

It plans a small network for two CPU cores, adds the exchange of gradients between two replicas as collectives of the
plan, has torchrun start a process per device, and compares the parameters with training on the whole batch in one
process. The network has no batch norm, so that both are the same up to rounding.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import dlplacer as dp
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.frontend import Job
from dlplacer.frontend.torch.tracing.micro_batches import part_of
from dlplacer.machines.costs.collectives import AlphaBeta, ring_all_reduce
from dlplacer.models import mlp
from dlplacer.planning.pipeline.micro_batch_names import BatchCut
from dlplacer.runtime.distributed import apply_ranks, replicated_plan

REPLICAS = 2
LEARNING_RATE = 0.1
LOOPBACK = AlphaBeta(1e-4, 1e-9)
"""A guess at gloo over loopback, for the plan; ``dlplacer run --replicas`` measures it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="of one replica")
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan is not None:
        compare(dp.load_plan(arguments.plan), arguments.batch_size, arguments.steps)
        return

    graph = dp.capture(mlp(batch_size=arguments.batch_size, width=256, depth=4))
    single = dp.place(graph, dp.load_topology("cpu-2core"), time_limit_s=5).plan
    plan = replicated_plan(single, REPLICAS, ring_all_reduce(LOOPBACK, REPLICAS), bucket_bytes=2**18)
    print(
        f"plan of one replica: {format_seconds(single.makespan_s)}; with {REPLICAS}: {format_seconds(plan.makespan_s)}"
    )
    for op in plan.order["network"]:
        entry = plan.scheduled[op]
        size = plan.graph.op(op).outputs[0].bytes
        print(
            f"  {op}: {size / 1e3:.0f} kB, {format_seconds(entry.start_s)} to {format_seconds(entry.end_s)}", flush=True
        )
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        plan.save(path)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        count = str(len(device_names(plan)) * REPLICAS)
        command = [*torchrun, "--nproc-per-node", count, *sys.argv, "--plan", str(path)]
        raise SystemExit(subprocess.run(command, check=False).returncode)


def compare(plan: Plan, batch: int, steps: int) -> None:
    """On a rank: train by the plan and in this process alone, and report the largest difference of all ranks."""
    losses, state = train(mlp(batch_size=REPLICAS * batch, width=256, depth=4), plan, steps)
    alone, expected = train_alone(mlp(batch_size=REPLICAS * batch, width=256, depth=4), steps)
    farthest = torch.stack([(state[name] - tensor).abs().max() for name, tensor in expected.items()]).max()
    dist.all_reduce(farthest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"loss after {steps} steps: {losses[-1]:.6f} on {dist.get_world_size()} ranks, {alone[-1]:.6f} on one")
        print(f"largest difference of any parameter to training on the whole batch: {float(farthest):.2g}")


def device_names(plan: Plan) -> list[str]:
    """A process for every device of a replica, on a core of its own where there is one."""
    count = len(plan.topology.devices) - 1  # the network is no device of this machine
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [f"rank{position}/cpu:{position % cores}" for position in range(count)]


def train(whole: Job, plan: Plan, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and the state dict of this replica, on one process."""
    devices = device_names(plan)
    job = part_of(whole, int(os.environ["RANK"]) // len(devices), BatchCut(REPLICAS))
    placed = apply_ranks(job, plan, devices, replicas=REPLICAS)
    optimizer = torch.optim.SGD(placed.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(float(placed.step(*job.args, *job.targets)))
        optimizer.step()
    state = placed.gathered_state_dict()
    placed.close()
    return losses, state


def train_alone(job: Job, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same in one process, on the whole batch."""
    optimizer = torch.optim.SGD(job.module.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = job.loss(job.module(*job.args), *job.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: parameter.detach() for name, parameter in job.module.named_parameters()}


if __name__ == "__main__":
    main()
