"""Threads or processes: what the trial decides, and that it leaves nothing behind."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from runtime.processes.small_jobs import LABELS, ROWS, Branches, job_of, placed_branches

import dlplacer as dp
from dlplacer.runtime.executor.alternating_trial import TrialRules
from dlplacer.runtime.executor.turns import TURNS
from dlplacer.runtime.placed.settle import settle
from dlplacer.runtime.processes.process_choice import PROCESSES, ProcessTrial
from dlplacer.runtime.processes.storage_users import shared_outside

MOST_STEPS = 3 + 1 + 2 * TURNS.most_pairs + 7 + 2 + 2 * PROCESSES.most_pairs
"""Of both trials: threads by turns or not, then threads or processes."""

SHORT = replace(PROCESSES, first=4, untimed=2, warmup=1, pairs=3, timed_s=30e-3)


def decided(threads_s: float, processes_s: float, ops: int = 100) -> tuple[ProcessTrial, list[bool]]:
    """A trial under steps of given length, and which of its steps ran with processes."""
    trial, taken = ProcessTrial("auto", ops, SHORT), []
    while trial.choice.used is None and len(taken) < 50:
        taken.append(trial.wants_processes)
        trial.took(taken[-1], processes_s if taken[-1] else threads_s)
    return trial, taken


def test_the_faster_is_chosen_after_alternating_steps():
    trial, taken = decided(10e-3, 5e-3)
    # Four steps with threads, one with processes to warm up, then three of each in turn.
    assert taken[:4] == [False] * 4
    assert sorted(taken[5:]) == [False] * 3 + [True] * 3
    assert all(one != other for one, other in pairwise(taken[5:]))
    assert trial.choice.used
    assert (trial.choice.threads_s, trial.choice.processes_s) == (10e-3, 5e-3)
    assert trial.wants_processes


def test_threads_stay_where_processes_gain_less_than_noise():
    trial, _ = decided(10e-3, 9.7e-3)
    assert trial.choice.used is False
    assert not trial.wants_processes
    assert str(trial.choice).startswith("threads: a step took")


def test_short_steps_are_tried_for_a_time_or_a_number_of_steps():
    """A spell that slows down one kind in the first five pairs does not decide."""

    def tried(rules: TrialRules) -> tuple[ProcessTrial, int]:
        trial, steps = ProcessTrial("auto", 100, rules), 0
        while trial.choice.used is None and steps < 1000:
            processes, steps = trial.wants_processes, steps + 1
            trial.took(processes, (9e-3 if steps < 20 else 3e-3) if processes else 6e-3)
        return trial, steps

    trial, steps = tried(PROCESSES)
    assert trial.choice.used
    assert 300 < steps <= 7 + 2 + 300
    trial, steps = tried(replace(PROCESSES, timed_s=0.9))
    assert trial.choice.used
    assert 7 + 2 + 0.8 / 4.5e-3 < steps < 7 + 2 + 1.0 / 4.5e-3
    assert tried(replace(PROCESSES, timed_s=0))[0].choice.used is False


@pytest.mark.parametrize(("slow_s", "used"), [(7e-3, True), (9e-3, False)])
def test_steps_at_two_speeds_count_by_their_mean(slow_s, used):
    """One quick core is enough for threads that take turns: at their best they are as fast as processes, but seldom."""
    trial, taken = ProcessTrial("auto", 100), [0, 0]
    while trial.choice.used is None and sum(taken) < 1000:
        processes = trial.wants_processes
        taken[processes] += 1
        seconds = (3e-3 if taken[processes] % 10 < 4 else slow_s) if processes else 6e-3
        trial.took(processes, 90e-3 if taken[processes] % 20 == 15 else seconds)
    assert trial.choice.used is used
    assert trial.choice.threads_s == pytest.approx(6e-3)
    assert trial.choice.processes_s == pytest.approx(0.4 * 3e-3 + 0.6 * slow_s, rel=0.1)


def test_large_ops_are_not_tried():
    trial, taken = decided(0.1, 0.01)
    assert trial.choice.used is False
    assert not any(taken)
    assert "1 ms per op" in trial.choice.reason


@pytest.mark.parametrize("wanted", ["yes", True, None])
def test_other_words_are_refused(wanted):
    job = job_of(Branches())
    with pytest.raises(dp.InputError, match="processes is"):
        dp.apply(job, dp.place(job, "cpu-2core", method="single"), "cpu:0,cpu:1", processes=wanted)


def test_one_device_has_nothing_to_choose():
    job = job_of(Branches())
    placed = dp.apply(job, dp.place(job, "cpu-2core", method="single"), "cpu:0,cpu:1", processes="on")
    placed.step(ROWS, LABELS)
    assert placed.processes.used is False
    assert placed.worker_pids == ()
    placed.close()


def test_the_trial_takes_real_steps_and_changes_no_number():
    """Enough steps for a whole trial, threads and processes in turn, are those of threads to the last bit."""
    results = []
    for processes in ("off", "auto"):
        module = placed_branches(processes)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        torch.manual_seed(5)
        losses = []
        for _ in range(MOST_STEPS):
            optimizer.zero_grad()
            losses.append(module.step(ROWS, LABELS))
            optimizer.step()
        results.append([*losses, *module.state_dict().values()])
        assert module.processes.used is not None
        module.close()
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize(("wanted", "optimizer"), [("auto", None), ("auto", "momentum"), ("off", None)])
def test_settling_leaves_the_module_as_it_was(wanted, optimizer):
    results = []
    for settles in (False, True):
        module = placed_branches(wanted, optimizer=optimizer)
        torch.manual_seed(5)
        found = [module.step(ROWS, LABELS)]
        if settles:
            assert not module.is_settled
            settle(module, lambda module=module: module.step(ROWS, LABELS))
            assert module.is_settled
        found += [module.step(ROWS, LABELS), torch.rand(3), *module.state_dict().values()]
        found += [one.grad for one in module.parameters() if one.grad is not None]
        results.append(found)
        module.close()
    assert all(map(torch.equal, *results))


def test_memory_that_others_use_is_moved_only_if_asked():
    def flattened(module: torch.nn.Module) -> torch.Tensor:
        parameters = list(module.parameters())
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            parameter.data = part.view_as(parameter)
        return flat

    job = job_of(Branches())
    plan = placed_branches("off").plan
    flat = flattened(job.module)
    placed = dp.apply(job, plan, "cpu:0,cpu:1", processes="auto")
    placed.step(ROWS, LABELS)
    assert placed.processes.used is False
    assert "is used outside of the module too" in placed.processes.reason
    flat.zero_()
    assert not any(parameter.any() for parameter in placed.parameters())
    placed.close()
    placed = dp.apply(job, plan, "cpu:0,cpu:1", processes="on")
    placed.step(ROWS, LABELS)
    assert placed.processes.used
    placed.close()
    del flat
    # Views of one memory that are all of the module's keep what they share.
    placed = dp.apply(job_of(Branches()), plan, "cpu:0,cpu:1", processes="auto")
    assert placed.processes.used is None
    placed.close()


def test_who_uses_a_storage():
    layer = torch.nn.Linear(2, 2)
    named = list(layer.named_parameters())
    assert shared_outside(named) is None
    kept = layer.state_dict()
    assert shared_outside(named) == "weight"
    del kept["weight"]
    assert shared_outside(named) == "bias"
    del kept
    layer.bias.data = layer.weight.data[0]
    assert shared_outside(named) is None
    assert shared_outside(named[1:]) == "bias"
    layer(torch.ones(1, 2)).sum().backward()
    assert shared_outside([*named, ("tied", layer.weight)]) is None
