"""When devices take turns on one thread: only where ops are small, and side by side takes longer."""

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import cast

import pytest
import torch
from frontend.torch.small_models import build, build_with, dropout, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random

from dlplacer.frontend import Job
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.turns import TurnTaking, can_take_turns


def choice(side_s: list[float], turns_s: list[float], ops: int = 100) -> tuple[bool | None, list[bool]]:
    """What is chosen after such runs, and how the runs were made."""
    taking, runs = TurnTaking(ops, None), []
    times = {False: iter(side_s), True: iter(turns_s)}
    for _ in range(10):
        runs.append(taking.next)
        if taking.chosen is not None:
            break
        taking.note(taking.next, next(times[taking.next]))
    return taking.chosen, runs


# 100 ops in 2 ms: 20 µs each. The first run compiles; the quickest of three counts.
def test_turns_are_taken_where_they_are_quicker() -> None:
    assert choice([0.1, 0.002, 0.003], [0.1, 0.001, 0.005]) == (True, [False] * 3 + [True] * 4)


def test_the_plan_stands_where_turns_gain_little_or_lose() -> None:
    assert choice([0.1, 0.002, 0.003], [0.1, 0.00185, 0.005]) == (False, [False] * 3 + [True] * 3 + [False])
    assert choice([0.1, 0.002, 0.003], [0.1, 0.004, 0.005])[0] is False


# 100 ops in 11 ms: 110 µs each.
def test_large_ops_are_never_run_by_turns() -> None:
    assert choice([0.1, 0.011, 0.012], []) == (False, [False] * 4)


def test_what_is_chosen_stays() -> None:
    taking = TurnTaking(1, True)
    taking.note(True, 1e9)
    assert taking.next


class _Device:
    def __init__(self, kind: str) -> None:
        self.torch_device = torch.device(kind)


def test_only_threads_on_the_host_take_turns() -> None:
    host, gpu = cast(RuntimeDevice, _Device("cpu")), cast(RuntimeDevice, _Device("cuda:0"))
    assert can_take_turns([host, host])
    assert not can_take_turns([host])
    assert not can_take_turns([host, gpu])


@needs_two_cores
@pytest.mark.parametrize(
    "model", [partial(build, "branches"), partial(build_with, dropout)], ids=["branches", "random"]
)
def test_the_numbers_are_the_same_by_turns(model: Callable[[], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[bool, list[torch.Tensor]] = {}
    threads: list[str] = []
    receive = CpuDevice.receive

    def heard(self: CpuDevice, value: torch.Tensor | None) -> torch.Tensor | None:
        threads.append(threading.current_thread().name)
        return receive(self, value)

    monkeypatch.setattr(CpuDevice, "receive", heard)
    for by_turns, expected in ((False, {"cpu:0", "cpu:1"}), (True, {"cpu:0"})):
        job = model()
        threads.clear()
        with placed_at_random(job, seed=1) as placed:
            assert placed._primary.joint.by_turns is None
            placed._primary.joint._turns.chosen = by_turns
            losses = [placed.step(*job.args, *job.targets) for _ in range(2)]
            gradients = [parameter.grad for parameter in placed.parameters() if parameter.grad is not None]
            seen[by_turns] = [*losses, *gradients]
        assert set(threads) == expected
    assert len(seen[True]) == len(seen[False]) > 2
    assert all(torch.equal(one, other) for one, other in zip(seen[True], seen[False], strict=True))


@needs_two_cores
def test_the_first_steps_try_both_and_change_no_number() -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        losses = []
        for _ in range(8):
            placed.zero_grad(set_to_none=True)
            losses.append(placed.step(*job.args, *job.targets))
        assert placed._primary.joint.by_turns is not None
        assert all(torch.equal(loss, losses[0]) for loss in losses)


@needs_two_cores
def test_a_recorded_step_by_turns_counts_no_op_twice() -> None:
    job = build("branches")
    with placed_at_random(job, graph=graph_of("branches")) as placed:
        placed._primary.joint._turns.chosen = True
        placed.records = True
        placed.step(*job.args, *job.targets)
        # Marks of the host's own clock, which is one for all devices.
        spans = sorted((begin, end) for timeline in placed.timelines.values() for _, begin, end in timeline.marks)
        assert len(spans) == len(placed.plan.ops)
        assert all(end <= later for (_, end), (later, _) in pairwise(spans))
