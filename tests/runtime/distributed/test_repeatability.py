"""Two runs over ranks with one plan and one seed are equal to the last bit, however the ranks are delayed."""

from dataclasses import replace

import pytest
import torch
from processes import run_ranks
from replicas import part_of
from runtime.jitter import delayed
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import Job, capture
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.models import branches
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed import rank_module as apply_module

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]

STEPS, REPLICAS = 3, 2
LONGEST_PAUSE_S = 2e-3


def hesitating(seed: int):
    """`open_devices` whose devices hesitate."""
    honest = apply_module.open_devices

    def open_delayed(names):
        return [delayed(device, LONGEST_PAUSE_S, seed + number) for number, device in enumerate(honest(names))]

    return open_delayed


def one_run(job: Job, plan, pauses: int | None):
    """[rank] → (losses, state dict of the replica) of some steps."""

    def work(rank: int):
        mine = part_of(job, rank // 2, REPLICAS)
        if pauses is not None:
            apply_module.open_devices = hesitating(pauses + rank)
        placed = apply_ranks(mine, plan, "rank0/cpu:0,rank1/cpu:1", replicas=REPLICAS, timeout_s=30)
        losses = [placed.step(*mine.args, *mine.targets) for _ in range(STEPS)]
        return losses, placed.gathered_state_dict()

    return run_ranks(2 * REPLICAS, work)


def dropping() -> Job:
    return replace(branches(batch_size=4, image_size=8, count=2, dropout=0.5), optimizer="momentum")


def test_losses_and_parameters_repeat_to_the_last_bit() -> None:
    job = dropping()
    plan = random_plan(capture(part_of(job, 0, REPLICAS)), 2, seed=1)
    plan = replicated_plan(plan, REPLICAS, AlphaBeta(1e-4, 1e-9), bucket_bytes=10_000)
    first, again = one_run(dropping(), plan, None), one_run(dropping(), plan, 7)
    before = job.module.state_dict()
    for (losses, state), (other_losses, other_state) in zip(first, again, strict=True):
        assert all(map(torch.equal, losses, other_losses))
        assert len({float(loss) for loss in losses}) == STEPS
        assert list(state) == list(other_state) == list(before)
        assert all(torch.equal(state[name], other_state[name]) for name in state)
        assert any(not torch.equal(state[name], before[name]) for name in state)
