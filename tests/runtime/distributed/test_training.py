"""Training over forked gloo processes equals training in one process."""

from dataclasses import replace

import pytest
import torch
from processes import run_ranks
from replicas import farthest, part_of, trained
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.core.plan import Plan
from dlplacer.frontend import Job, capture
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.models import branches, mlp
from dlplacer.runtime.distributed import RankModule, apply_ranks, replicated_plan

pytestmark = needs_two_cores

LINE = AlphaBeta(1e-4, 1e-9)
TOLERANCE = 1e-6


def owned(placed: RankModule) -> list[str]:
    """Names of the parameters and buffers that this process holds."""
    tensors = (*placed.named_parameters(remove_duplicate=False), *placed.named_buffers(remove_duplicate=False))
    return [name for name, tensor in tensors if not tensor.is_meta]


def plan_for(job: Job, replicas: int, seed: int = 1, devices: int = 2) -> Plan:
    plan = random_plan(capture(job), devices, seed)
    return plan if replicas == 1 else replicated_plan(plan, replicas, LINE, bucket_bytes=40_000)


def steps_on_ranks(job: Job, plan: Plan, names: str, ranks: int, replicas: int, steps: int = 10, lr: float = 0.1):
    """[rank] → (losses, state dict of the replica, names that the rank holds) after some steps."""

    def work(rank: int):
        mine = part_of(job, rank // (ranks // replicas), replicas)
        placed = apply_ranks(mine, plan, names, replicas=replicas)
        optimizer = torch.optim.SGD(placed.parameters(), lr=lr)
        losses = []
        for _ in range(steps):
            placed.zero_grad()
            losses.append(float(placed.step(*mine.args, *mine.targets)))
            if job.update is None:
                optimizer.step()
        state = placed.gathered_state_dict()
        held = owned(placed)
        placed.close()
        return losses, state, held

    return run_ranks(ranks, work)


# Two replicas of two ranks, or of one rank with two devices: the batch of 8 is cut into 4 + 4.
@pytest.mark.parametrize(
    ("names", "ranks"), [("rank0/cpu:0,rank1/cpu:1", 4), ("rank0/cpu:0,rank0/cpu:1", 2)], ids=["2 x 2 ranks", "2 ranks"]
)
def test_two_by_two_equals_the_full_batch(names: str, ranks: int) -> None:
    plan = plan_for(mlp(batch_size=4), 2)
    assert len(plan.order["network"]) >= 3
    found = steps_on_ranks(mlp(batch_size=8), plan, names, ranks, replicas=2)
    losses, expected = trained([mlp(batch_size=8)], steps=10)
    for theirs, state, _ in found:
        assert theirs == pytest.approx(losses, abs=TOLERANCE)
        assert farthest(state, expected) < TOLERANCE
    assert all(torch.equal(found[0][1][name], found[-1][1][name]) for name in expected)


def test_updates_in_the_program_read_the_mean() -> None:
    job = replace(mlp(batch_size=8), optimizer="momentum")
    plan = plan_for(replace(mlp(batch_size=4), optimizer="momentum"), 2)
    found = steps_on_ranks(job, plan, "rank0/cpu:0,rank1/cpu:1", 4, replicas=2, steps=4)
    plain = mlp(batch_size=8)
    optimizer = torch.optim.SGD(plain.module.parameters(), lr=0.01, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        plain.loss(plain.module(*plain.args), *plain.targets).backward()
        optimizer.step()
    expected = {name: parameter.detach() for name, parameter in plain.module.named_parameters()}
    for _, state, _ in found:
        assert farthest(state, expected) < TOLERANCE


def test_replicas_train_as_under_distributed_data_parallel() -> None:
    """Batch norm takes its statistics from a replica's own part, as there."""
    plan = plan_for(branches(batch_size=4, image_size=8), 2, seed=3)

    def work(rank: int):
        mine = part_of(branches(batch_size=8, image_size=8), rank, 2)
        placed = apply_ranks(mine, plan, "rank0/cpu:0,rank0/cpu:1", replicas=2)
        theirs = part_of(branches(batch_size=8, image_size=8), rank, 2)
        wrapped = torch.nn.parallel.DistributedDataParallel(theirs.module)
        optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (placed, wrapped)]
        for _ in range(5):
            for optimizer in optimizers:
                optimizer.zero_grad()
            placed.step(*mine.args, *mine.targets)
            theirs.loss(wrapped(*theirs.args), *theirs.targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        return placed.gathered_state_dict(), {name: one.detach() for name, one in theirs.module.named_parameters()}

    first, second = run_ranks(2, work)
    for state, expected in (first, second):
        assert farthest(state, expected) < 1e-5
    assert not torch.equal(first[0]["stem.bn.running_mean"], second[0]["stem.bn.running_mean"])


def test_loss_backward_evaluation_and_other_shapes() -> None:
    plan = plan_for(mlp(batch_size=4), 2)

    def work(rank: int):
        job = part_of(mlp(batch_size=8), rank // 2, 2)
        placed = apply_ranks(job, plan, "rank0/cpu:0,rank1/cpu:1", replicas=2)
        loss = placed(*job.args, *job.targets)
        loss.backward()
        by_backward = {name: p.grad.clone() for name, p in placed.named_parameters() if p.grad is not None}
        placed.zero_grad()
        placed.step(*job.args, *job.targets)
        by_step = {name: p.grad.clone() for name, p in placed.named_parameters() if p.grad is not None}
        short = float(placed.step(job.args[0][:2], job.targets[0][:2]))
        placed.eval()
        logits = placed(*job.args)
        placed.close()
        return loss.item(), by_backward, by_step, short, logits, owned(placed)

    found = run_ranks(4, work)
    for loss, by_backward, by_step, short, logits, held in found:
        assert loss == found[0][0]
        assert short == found[0][3]
        assert by_step.keys() == by_backward.keys()
        assert farthest(by_step, by_backward) < TOLERANCE
        assert set(held) == by_step.keys()
        assert logits.shape == (4, 10)
    assert torch.equal(found[0][4], found[1][4])
    assert not torch.equal(found[0][4], found[2][4])


def with_dropout() -> Job:
    job = branches(batch_size=4, image_size=8)
    job.module.fc = torch.nn.Sequential(torch.nn.Dropout(0.5), job.module.fc)
    return job


def test_replicas_draw_different_dropout() -> None:
    job = with_dropout()
    plan = plan_for(job, 2)

    def work(rank: int):
        mine = with_dropout()
        placed = apply_ranks(mine, plan, "rank0/cpu:0,rank0/cpu:1", replicas=2)
        placed.group.mean_over_replicas = lambda value, memory: value.double()  # each its own loss
        return [float(placed.step(*mine.args, *mine.targets)) for _ in range(2)]

    first, second = run_ranks(2, work)
    assert first[0] != second[0]
    assert first[0] != first[1]
