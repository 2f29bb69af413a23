"""When devices take turns on one thread: only where ops are small, and side by side takes longer."""

import threading
from collections.abc import Callable
from dataclasses import replace
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
from dlplacer.runtime.executor.alternating_trial import AlternatingTrial
from dlplacer.runtime.executor.turns import TURNS, can_take_turns

SHORT = replace(TURNS, pairs=2, most_pairs=3)
"""Three steps side by side, one by turns to warm up, then three of each in turn."""


def choice(side_s: list[float], turns_s: list[float], ops: int = 100) -> tuple[bool | None, list[bool]]:
    """What is chosen after such steps, and how the steps were made."""
    trial, steps = AlternatingTrial(ops, SHORT), []
    times = {False: iter(side_s), True: iter(turns_s)}
    while trial.chosen is None:
        steps.append(trial.wants_other)
        trial.took(steps[-1], next(times[steps[-1]]))
    return trial.chosen, steps


# 100 ops in 2 ms: 20 us each. The first step of either way compiles; the mean of the others counts, whichever was best.
@pytest.mark.parametrize(
    ("turns_s", "taken"),
    [([9, 1.8e-3, 1.9e-3, 1.7e-3], True), ([9, 1.95e-3, 1.96e-3, 1.7e-3], False), ([9, 4e-3, 5e-3, 1e-3], False)],
    ids=["quicker", "hardly quicker", "slower but once"],
)
def test_turns_are_taken_where_they_need_less_on_average(turns_s: list[float], taken: bool) -> None:
    chosen, steps = choice([0.1, 2e-3, 3e-3, 2e-3, 2e-3, 2e-3], turns_s)
    assert chosen is taken
    assert steps[:4] == [False] * 3 + [True]
    assert sorted(steps[4:]) == [False] * 3 + [True] * 3
    assert all(one != other for one, other in pairwise(steps[4:]))


def test_a_machine_that_is_slower_later_changes_nothing() -> None:
    speed = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    for turns_s, taken in ((1.5e-3, True), (2.5e-3, False)):
        trial = AlternatingTrial(100, SHORT)
        for slower in speed:
            trial.took(trial.wants_other, slower * (turns_s if trial.wants_other else 2e-3))
        assert trial.chosen is taken


# 100 ops in 11 ms: 110 us each.
def test_large_ops_are_never_run_by_turns() -> None:
    assert choice([0.1, 0.011, 0.012], []) == (False, [False] * 3)


def test_what_is_chosen_stays() -> None:
    trial = AlternatingTrial(1, TURNS, chosen=True)
    trial.took(True, 1e9)
    assert trial.wants_other


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
    # The first step may take long; one that does not, the caller takes itself.
    for by_turns, expected in ((False, {"cpu:0", "cpu:1"}), (True, {"cpu:0", "MainThread"})):
        job = model()
        threads.clear()
        with placed_at_random(job, seed=1, processes="off") as placed:
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
    with placed_at_random(job, graph=graph_of("branches"), processes="off") as placed:
        losses = []
        for _ in range(4 + 2 * TURNS.most_pairs):
            placed.zero_grad(set_to_none=True)
            losses.append(placed.step(*job.args, *job.targets))
        assert placed._primary.joint.by_turns is not None
        assert all(torch.equal(loss, losses[0]) for loss in losses)


@needs_two_cores
def test_a_recorded_step_by_turns_counts_no_op_twice() -> None:
    job = build("branches")
    # Under this plan both devices can begin at once: the second one's first op must not count the first one's turn.
    with placed_at_random(job, seed=1, graph=graph_of("branches"), processes="off") as placed:
        placed._primary.joint._turns.chosen = True
        placed.records = True
        placed.step(*job.args, *job.targets)
        # Marks of the host's own clock, which is one for all devices.
        spans = sorted((begin, end) for timeline in placed.timelines.values() for _, begin, end in timeline.marks)
        assert len(spans) == len(placed.plan.ops)
        assert all(end <= later for (_, end), (later, _) in pairwise(spans))
