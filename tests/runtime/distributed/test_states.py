"""What ranks hold: state dicts that are loaded and gathered, random numbers, copies, weights to begin with."""

import copy
import warnings

import pytest
import torch
from processes import run_ranks
from replicas import part_of
from runtime.distributed.small_ranks import NAMES, Classifier, plain_step, small_job, small_plan
from runtime.random_plans import needs_two_cores

from dlplacer.core.plan import Plan
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.runtime.distributed import RankModule, apply_ranks, replicated_plan

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]
REPLICAS = "rank0/cpu:0,rank0/cpu:1"


def applied(dropout: float = 0.0) -> tuple[RankModule, tuple[torch.Tensor, ...]]:
    job = small_job(dropout)
    return apply_ranks(job, small_plan(dropout), NAMES, timeout_s=60), (*job.args, *job.targets)


def replicated(dropout: float) -> Plan:
    return replicated_plan(small_plan(dropout), 2, AlphaBeta(1e-4, 1e-9), bucket_bytes=1000)


def trained(placed: RankModule, batch: tuple[torch.Tensor, ...]) -> None:
    """A step of plain SGD."""
    placed.zero_grad()
    placed.step(*batch)
    with torch.no_grad():
        for parameter in placed.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


@pytest.mark.parametrize("assign", [False, True])
def test_the_state_of_the_whole_model_is_loaded_by_parts(assign: bool) -> None:
    given = Classifier()
    with torch.no_grad():
        for parameter in given.parameters():
            parameter.mul_(1.5)

    def work(rank: int) -> tuple[list[dict[str, torch.Tensor]], int]:
        placed, batch = applied()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            placed.load_state_dict(copy.deepcopy(given.state_dict()), assign=assign)
        found = [copy.deepcopy(placed.gathered_state_dict())]
        trained(placed, batch)
        found.append(placed.gathered_state_dict())
        return found, sum(not parameter.is_meta for parameter in placed.parameters())

    loaded = copy.deepcopy(given)
    plain_step(loaded, small_job())
    found = run_ranks(2, work)
    assert sum(held for _, held in found) == len(list(given.parameters()))
    for (before, after), _ in found:
        assert equal(before, given.state_dict())
        assert equal(after, loaded.state_dict())


@pytest.mark.parametrize("which", ["first.weight", "norm.running_mean"])
def test_ranks_that_begin_with_other_values_are_refused_by_name(which: str) -> None:
    def work(rank: int) -> None:
        job = small_job()
        with torch.no_grad():
            job.module.state_dict()[which].flatten()[-1] += rank
        apply_ranks(job, small_plan(), NAMES, timeout_s=60)

    for _, name, message in run_ranks(2, work):
        assert name == "InputError"
        assert message.startswith(f"rank 0 and rank 1 differ in the values of {which!r}")


def test_replicas_have_statistics_of_their_own_and_one_loss_in_evaluation() -> None:
    plan = replicated(0.0)

    def work(rank: int) -> tuple[float, float]:
        job = part_of(small_job(batch=8), rank, 2)
        with torch.no_grad():
            job.module.norm.running_mean += rank
        placed = apply_ranks(job, plan, REPLICAS, replicas=2, timeout_s=60)
        placed.eval()
        own = float(job.loss(placed(*job.args), *job.targets))
        return own, float(placed(*job.args, *job.targets))

    found = run_ranks(2, work)
    assert found[0][0] != found[1][0]
    for _, loss in found:
        assert loss == pytest.approx(sum(own for own, _ in found) / 2)
