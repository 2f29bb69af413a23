"""A process that fails, ends or does not come: all processes end soon, with the error of the first."""

import os
import signal
import struct
import threading
import time
from multiprocessing.connection import Connection

import pytest
import torch
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.core.errors import DlplacerError, RunError
from dlplacer.frontend import capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.models import mlp
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed import failure as failure_module
from dlplacer.runtime.distributed.launch import launch
from dlplacer.runtime.distributed.messages import channels as exchange_module

pytestmark = needs_two_cores

NAMES = "rank0/cpu:0,rank1/cpu:1"
LIMIT_S = 120.0
SOON_S = LIMIT_S / 2


@pytest.fixture(scope="module")
def plan():
    return replicated_plan(random_plan(capture(mlp(batch_size=4)), 2, seed=1), 2, AlphaBeta(1e-4, 1e-9), 40_000)


def second_step(plan, culprit, timeout_s: float = LIMIT_S, leaving: int = 0):
    """[rank] → (seconds, message) of the error in the second step.

    Parameters
    ----------
    culprit
        (rank, job, its group) → the targets of that rank's second step.
    leaving
        How many processes leave.
    """

    def work(rank: int):
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, replicas=2, timeout_s=LIMIT_S)
        placed.step(*job.args, *job.targets)
        placed.group.failure.timeout_s = timeout_s
        began = time.monotonic()
        try:
            placed.step(*job.args, culprit(rank, job, placed.group))
        except DlplacerError as error:
            return time.monotonic() - began, str(error)
        return None

    return run_ranks(4, work, leaving=leaving)


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_failing_op_ends_all_ranks_with_its_name(plan, culprit: int) -> None:
    def bad_targets(rank: int, job, group) -> torch.Tensor:
        return torch.full_like(job.targets[0], 77) if rank // 2 == culprit // 2 else job.targets[0]

    found = second_step(plan, bad_targets)
    for seconds, message in found:
        assert "op 'nll_loss_forward' failed on cpu:" in message
        assert "Target 77 is out of bounds" in message
        assert seconds < SOON_S
    named = [message.startswith("rank") for _, message in found]
    assert named.count(False) == 1  # where it happened


def test_a_process_that_is_gone_ends_the_others(plan) -> None:
    def leave(rank: int, job, group) -> torch.Tensor:
        if rank == 3:
            os._exit(9)
        return job.targets[0]

    *found, gone = second_step(plan, leave, leaving=1)
    assert gone == ("ended",)
    for seconds, message in found:
        assert "rank 3 has ended or is out of reach" in message
        assert seconds < SOON_S


def test_a_process_that_does_not_come_is_waited_for_until_the_time_limit(plan) -> None:
    def dawdle(rank: int, job, group) -> torch.Tensor:
        while rank == 1 and group.failure.error is None:
            time.sleep(0.05)
        return job.targets[0]

    found = second_step(plan, dawdle, timeout_s=2.0)
    assert all("waited 2 s for" in message and "another rank is slow" in message for _, message in found)


def test_ranks_with_different_plans_do_not_start(plan) -> None:
    other = replicated_plan(random_plan(capture(mlp(batch_size=4)), 2, seed=2), 2, AlphaBeta(1e-4, 1e-9), 40_000)

    def work(rank: int):
        apply_ranks(mlp(batch_size=4), other if rank == 2 else plan, NAMES, replicas=2, timeout_s=LIMIT_S)

    for kind, name, message in run_ranks(4, work):
        assert (kind, name) == ("error", "InputError")
        assert "differ in" in message
        assert "start all ranks with the same model, plan and options" in message


def test_a_number_of_processes_that_does_not_fit_is_named(plan) -> None:
    def work(rank: int):
        apply_ranks(mlp(batch_size=4), plan, NAMES, replicas=2, timeout_s=LIMIT_S)

    for _, name, message in run_ranks(2, work):
        assert name == "InputError"
        assert "the plan needs 4 processes (2 replicas of 2); 2 were started" in message


def test_replicas_without_collectives_are_refused() -> None:
    def work(rank: int):
        apply_ranks(mlp(batch_size=4), random_plan(capture(mlp(batch_size=4)), 2), NAMES, replicas=2)

    ((_, name, message),) = run_ranks(1, work)
    assert name == "MismatchError"
    assert "the plan was made for 1 replicas, and 2 are to run" in message


def test_channels_in_an_order_that_would_hang_never_start(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = exchange_module.by_channel

    def reversed_channels(messages, rank_of, ordered_pairs):
        return {channel: entries[::-1] for channel, entries in honest(messages, rank_of, False).items()}

    monkeypatch.setattr(exchange_module, "by_channel", reversed_channels)
    for _, name, message in second_step(plan, lambda rank, job, group: job.targets[0]):
        assert name == "InternalError"
        assert "the program would hang across processes" in message


def test_without_a_launcher_the_way_to_start_is_named(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(DlplacerError, match=r"RANK is not set: .* torchrun"):
        apply_ranks(mlp(batch_size=4), plan, NAMES, replicas=2)


def test_an_error_outside_all_ops_ends_all_ranks(plan) -> None:
    def work(rank: int):
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, NAMES, replicas=2, timeout_s=30)
        if rank == 2:
            placed._run = broken
        began = time.monotonic()
        try:
            placed.step(*job.args, *job.targets)
        except Exception as error:
            return time.monotonic() - began, type(error).__name__, str(error)
        return None

    def broken(*_: object) -> None:
        raise ValueError("no step today")

    for rank, (seconds, name, message) in enumerate(run_ranks(4, work)):
        expected = ("ValueError", "no step today") if rank == 2 else ("RunError", "rank 2: no step today")
        assert (name, message) == expected
        assert seconds < SOON_S


def test_a_mistake_on_one_rank_is_an_error_on_all(plan) -> None:
    def work(rank: int):
        began = time.monotonic()
        names = NAMES.replace("cpu:1", "cpu:9999") if rank == 1 else NAMES
        try:
            apply_ranks(mlp(batch_size=4), plan, names, replicas=2, timeout_s=60)
        except DlplacerError as error:
            return time.monotonic() - began, error.exit_code, str(error)
        return None

    for rank, (seconds, code, message) in enumerate(run_ranks(4, work)):
        assert message.startswith(
            "device 'cpu:9999' needs 10000 cores" if rank == 1 else "rank 1: device 'cpu:9999' needs"
        )
        assert code == 2
        assert seconds < 60


def test_a_group_that_is_not_complete_ends_at_the_time_limit(plan) -> None:
    def work(rank: int):
        os.environ["WORLD_SIZE"] = "4"
        apply_ranks(mlp(batch_size=4), plan, NAMES, replicas=2, timeout_s=1)

    ((_, name, message),) = run_ranks(1, work)
    assert name == "RunError"
    assert message.startswith("rank 0 failed to join a group of 4 within 1 s; a process has ended, or not all were")


class StuckStore:
    """A store whose process is stopped: it takes questions and never answers."""

    def check(self, keys: list[str]) -> bool:
        threading.Event().wait()
        return True

    def compare_set(self, *_: str) -> bytes:
        threading.Event().wait()
        return b""


def test_a_store_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_module, "_POST_LIMIT_S", 0.1)
    failure = failure_module.Failure(3, StuckStore(), timeout_s=0.1)
    waiting = failure.future()
    with pytest.raises(DlplacerError, match=r"rank 3 waited 0.1 s for a tensor"):
        failure.wait(failure.future(), "a tensor")
    with pytest.raises(DlplacerError, match="rank 3 waited"):
        waiting.result(0)


class SlowStore:
    """A store that takes its time; `asked` is set while it does."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def add(self, key: str, amount: int) -> int:
        self.asked.set()
        time.sleep(0.2)
        return amount

    def check(self, keys: list[str]) -> bool:
        return False


def test_nobody_is_inside_of_the_store_after_closing() -> None:
    """Python ends a thread that is: torch's code does not bear that, and the process aborts."""
    store = SlowStore()
    failure = failure_module.Failure(7, store, timeout_s=1)
    failure.watch("secret")
    assert store.asked.wait(5)
    failure.close()
    assert "rank7 watch" not in {thread.name for thread in threading.enumerate()}


class StoreThatAnswersLate:
    """What is posted can be read for a while before the post is answered."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def add(self, key: str, amount: int) -> int:
        return amount

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.values.setdefault(key, desired)
        time.sleep(0.5)
        return self.values[key].encode()


def test_where_it_happened_an_error_keeps_its_text() -> None:
    """The thread that watches may read what its own process has posted."""
    store = StoreThatAnswersLate()
    here, elsewhere = (failure_module.Failure(rank, store, timeout_s=1, count=2) for rank in (0, 1))
    for failure in (here, elsewhere):
        failure.watch("secret")
    waiting, other = here.future(), elsewhere.future()
    here.fail(RunError("op 'a' failed"))
    with pytest.raises(RunError, match=r"^op 'a' failed"):
        waiting.result(5)
    with pytest.raises(RunError, match=r"^rank 0: op 'a' failed"):
        other.result(5)
    for failure in (here, elsewhere):
        failure.close()


def test_a_result_that_cannot_be_sent_is_named() -> None:
    ((kind, _, message),) = run_ranks(1, lambda rank: lambda: rank)
    assert kind == "error"
    assert "pickle" in message


@pytest.mark.timeout(60)
def test_a_process_that_is_killed_within_its_last_words_is_named() -> None:
    """What it has begun to say never ends: nobody may wait for the rest."""

    def begins(self: Connection, said: bytes) -> None:
        os.write(self.fileno(), struct.pack("!i", len(said)) + said[:3])
        os.kill(os.getpid(), signal.SIGKILL)

    def work(rank: int) -> str:
        if rank == 1:
            Connection.send_bytes = begins  # type: ignore[method-assign,assignment]
        return "done"

    outcomes = launch(3, work, 40.0)
    assert [outcome.result for outcome in outcomes] == ["done", None, "done"]
    assert outcomes[1].error is not None
    assert outcomes[1].error[0] == "ended"
    assert "SIGKILL" in outcomes[1].error[1]
