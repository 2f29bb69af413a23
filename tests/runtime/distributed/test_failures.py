"""A rank that fails, is killed, is stuck or makes another call: every rank ends within the timeout, and says why."""

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
from processes import run_ranks
from runtime.distributed.small_ranks import NAMES, small_job, small_plan
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.core.errors import InputError, RunError
from dlplacer.core.plan import Plan
from dlplacer.frontend import Job, capture
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.models import mlp
from dlplacer.runtime.distributed import RankModule, apply_ranks, replicated_plan

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]

LIMIT_S = 40.0
SOON_S = LIMIT_S / 2
"""Connections that close end who waits at once, and not at the limit."""
Said = tuple[float, str, str]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return replicated_plan(random_plan(capture(mlp(batch_size=4)), 2, seed=1), 2, AlphaBeta(1e-4, 1e-9), 40_000)


def second_step(
    culprit: Callable[[int, Job, RankModule], None],
    plan: Plan | None = None,
    timeout_s: float = LIMIT_S,
    leaving: int = 0,
):
    """[rank of 2, or of 2 × 2 with a plan of replicas] → (seconds, type, message) of the error in the second step.

    Parameters
    ----------
    culprit
        Called on every rank ahead of that step.
    """
    planned = plan or small_plan()

    def work(rank: int) -> Said | None:
        job = mlp(batch_size=4) if plan else small_job()
        placed = apply_ranks(job, planned, NAMES, replicas=2 if plan else 1, timeout_s=timeout_s)
        placed.step(*job.args, *job.targets)
        began = time.monotonic()
        try:
            culprit(rank, job, placed)
            placed.step(*job.args, *job.targets)
        except BaseException as error:
            return time.monotonic() - began, type(error).__name__, str(error)
        return None

    return run_ranks(4 if plan else 2, work, leaving=leaving)


def test_a_failing_op_is_named_where_it_failed_and_ends_all_ranks(plan: Plan) -> None:
    def bad_targets(rank: int, job: Job, placed: RankModule) -> None:
        if rank >= 2:
            job.targets[0].fill_(77)

    found = second_step(bad_targets, plan)
    assert all(kind == "RunError" and seconds < SOON_S for seconds, kind, _ in found)
    named = ["op 'nll_loss_forward' failed on cpu:" in message for _, _, message in found]
    assert named.count(True) == 1
    assert named.index(True) >= 2
    others = [message for (_, _, message), is_named in zip(found, named, strict=True) if not is_named]
    assert all("did not get" in message for message in others)


def test_a_rank_that_is_killed_is_named_with_what_it_owed(plan: Plan) -> None:
    def leave(rank: int, job: Job, placed: RankModule) -> None:
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    *found, gone = second_step(leave, plan, leaving=1)
    assert gone == ("ended",)
    assert all(kind == "RunError" and seconds < SOON_S for seconds, kind, _ in found)
    _, _, partner = found[2]
    assert "rank 2 did not get tensor '" in partner
    assert "rank 3" in partner


def test_a_rank_that_is_stuck_is_waited_for_until_the_time_limit() -> None:
    def dawdle(rank: int, job: Job, placed: RankModule) -> None:
        if rank == 1:
            time.sleep(4)

    (seconds, kind, message), (_, other, _) = second_step(dawdle, timeout_s=1.5)
    assert (kind, other) == ("RunError", "RunError")
    assert seconds < 4
    assert "rank 1" in message
    assert "timeout of 1.5 s" in message


def test_ctrl_c_while_a_rank_waits_for_another_ends_both() -> None:
    def interrupts(rank: int, job: Job, placed: RankModule) -> None:
        if rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.alarm(2)
        else:
            time.sleep(4)

    (waited_s, first, _), (seconds, second, _) = second_step(interrupts)
    assert (first, second) == ("KeyboardInterrupt", "RunError")
    assert waited_s < 4
    assert seconds < SOON_S


def refused(work: Callable[[int], object], ranks: int) -> list[str]:
    """[rank] → the message of the mistake that all of them report."""
    found = run_ranks(ranks, work)
    assert all(entry[:2] in (("error", "InputError"), ("error", "MismatchError")) for entry in found), found
    return [message for _, _, message in found]


def test_ranks_that_differ_before_the_first_step_are_refused_with_the_difference() -> None:
    plan, other = small_plan(seed=1), small_plan(seed=2)

    def plans(rank: int) -> None:
        apply_ranks(small_job(), other if rank else plan, NAMES, timeout_s=LIMIT_S)

    def versions(rank: int) -> None:
        if rank == 1:
            torch.__version__ = "1.0"  # type: ignore[assignment]
        apply_ranks(small_job(), plan, NAMES, timeout_s=LIMIT_S)

    assert all("rank 0 and rank 1 differ in order" in text for text in refused(plans, 2))
    assert all("rank 0 and rank 1 differ in version of torch" in text for text in refused(versions, 2))


def test_steps_that_differ_are_refused_when_they_are_made_and_the_group_goes_on() -> None:
    def work(rank: int) -> tuple[str, float]:
        job = small_job(0.5)
        placed = apply_ranks(job, small_plan(0.5), NAMES, timeout_s=LIMIT_S)
        placed.step(*job.args, *job.targets)
        job.module.dropout.p = 0.1 if rank else 0.5
        placed.recapture()
        with pytest.raises(InputError) as mistake:
            placed.step(*job.args, *job.targets)
        job.module.dropout.p = 0.5
        placed.recapture()
        return str(mistake.value), float(placed.step(*job.args, *job.targets))

    (left, loss), (right, same) = run_ranks(2, work)
    assert left == right
    assert "rank 0 and rank 1 differ in the ops of the step" in left
    assert loss == same


def test_ranks_that_make_different_calls_end_at_the_time_limit() -> None:
    def work(rank: int) -> str:
        job = small_job()
        placed = apply_ranks(job, small_plan(), NAMES, timeout_s=3.0)
        placed.step(*job.args, *job.targets)
        placed(*job.args, *job.targets).backward()
        call = placed if rank else placed.step
        with pytest.raises(RunError, match=f"rank {rank} did not get"):
            call(*job.args, *job.targets)
        return "ended"

    assert run_ranks(2, work, limit_s=60) == ["ended", "ended"]


def test_a_gradient_that_replicas_do_not_exchange_is_refused_by_name(plan: Plan) -> None:
    def work(rank: int) -> None:
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, "rank0/cpu:0,rank0/cpu:1", replicas=2, timeout_s=LIMIT_S)
        next(job.module.parameters()).requires_grad_(False)
        placed.step(*job.args, *job.targets)

    assert all("was frozen after the plan was applied" in text for text in refused(work, 2))


def test_a_mistake_on_one_rank_ends_all() -> None:
    plan = small_plan()

    def work(rank: int) -> None:
        names = NAMES.replace("cpu:1", "cpu:9999") if rank == 1 else NAMES
        apply_ranks(small_job(), plan, names, timeout_s=LIMIT_S)

    began = time.monotonic()
    found = run_ranks(2, work)
    assert time.monotonic() - began < SOON_S
    assert [kind for _, kind, _ in found] == ["RunError", "InputError"]
    assert "device 'cpu:9999' needs 10000 cores" in found[1][2]
