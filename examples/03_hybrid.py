"""Hybrid training: two replicas, each over two devices, on gloo processes of this machine, beside plain training.

It plans a small network for two CPU cores, adds the exchange of gradients between two replicas as collectives of the
plan, trains on one process per device, and compares the parameters with training on the whole batch in one process.
The network has no batch norm, so that both are the same up to rounding.
"""

import argparse
import os

import torch

import dlplacer as dp
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.frontend import Job
from dlplacer.frontend.torch.batch_part import part_of
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives import ring_all_reduce
from dlplacer.models import mlp
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed.launch import launch, results_of

REPLICAS = 2
LEARNING_RATE = 0.1
LOOPBACK = AlphaBeta(1e-4, 1e-9)
"""A guess at gloo over loopback, for the plan; ``dlplacer run --replicas`` measures it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="of one replica")
    arguments = parser.parse_args()
    batch = arguments.batch_size

    graph = dp.capture(mlp(batch_size=batch, width=256, depth=4))
    single = dp.place(graph, dp.load_topology("cpu-2core"), time_limit_s=5).plan
    plan = replicated_plan(single, REPLICAS, ring_all_reduce(LOOPBACK, REPLICAS), bucket_bytes=2**18)
    print(
        f"plan of one replica: {format_seconds(single.makespan_s)}; with {REPLICAS}: {format_seconds(plan.makespan_s)}"
    )
    for op in plan.order["network"]:
        entry = plan.scheduled[op]
        size = plan.graph.op(op).outputs[0].bytes
        print(f"  {op}: {size / 1e3:.0f} kB, {format_seconds(entry.start_s)} to {format_seconds(entry.end_s)}")

    whole = mlp(batch_size=REPLICAS * batch, width=256, depth=4)
    devices = device_names(plan)
    found = results_of(
        launch(len(set(devices)) * REPLICAS, lambda rank: train(rank, whole, plan, devices, arguments.steps), 120)
    )
    losses, expected = train_alone(whole, arguments.steps)
    farthest = max(float((state[name] - tensor).abs().max()) for _, state in found for name, tensor in expected.items())
    print(f"loss after {arguments.steps} steps: {found[0][0][-1]:.6f} on {len(found)} ranks, {losses[-1]:.6f} on one")
    print(f"largest difference of any parameter to training on the whole batch: {farthest:.2g}")


def device_names(plan: Plan) -> list[str]:
    """A process for every device of a replica, on a core of its own where there is one."""
    count = len(plan.topology.devices) - 1  # the network is no device of this machine
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [f"rank{position}/cpu:{position % cores}" for position in range(count)]


def train(
    rank: int, whole: Job, plan: Plan, devices: list[str], steps: int
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and the state dict of this replica, on one process."""
    job = part_of(whole, rank // len(devices), REPLICAS)
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
