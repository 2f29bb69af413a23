"""What processes call must be the same: a difference or a mistake is told on all at once, and ends nothing."""

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from processes import run_ranks
from runtime.distributed.small_ranks import NAMES, Classifier, plain_step, small_job, small_plan
from runtime.random_plans import needs_two_cores, random_plan
from torch import nn

from dlplacer.core.errors import InputError, RunError
from dlplacer.frontend import Job, capture
from dlplacer.runtime.distributed import apply_ranks
from dlplacer.runtime.distributed.rank_variant import RankVariant

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]
LIMIT_S = 60.0
SOON_S = 30.0
"""Who waits for a rank that does not come waits for the limit."""


def told(call: Callable[[], object]) -> str:
    """The text of the InputError of a call."""
    with pytest.raises(InputError) as refused:
        call()
    return str(refused.value)


def calls(rank: int) -> tuple[dict[str, str], float, list[float]]:
    """Calls that differ between the ranks: what each is told, the seconds of all, and losses of good calls among them.

    After each the group goes on.
    """
    job = small_job(0.5)
    placed = apply_ranks(job, small_plan(0.5), NAMES, timeout_s=LIMIT_S)
    x, y = *job.args, *job.targets
    found: dict[str, str] = {}
    began = time.monotonic()

    def step() -> torch.Tensor:
        return placed.step(x, y)

    found["a dtype"] = told(lambda: placed.step(x.double() if rank else x, y))
    found["a count"] = told(lambda: placed(x, y, y) if rank else placed(x, y))
    found["step and forward"] = told(step if rank else lambda: placed(x, y))
    losses = [float(step().detach())]
    loss = placed(x, y)
    found["backward and step"] = told(loss.backward if rank else step)
    loss.backward()
    found["backward twice"] = told(loss.backward)
    found["only one twice"] = told(loss.backward if rank else step)
    other = copy.deepcopy(placed)
    found["a copy"] = told(step if rank else lambda: other.step(x, y))
    placed.train(not rank)
    found["a mode"] = told(lambda: placed(x) if rank else placed(x, y))
    placed.train()
    job.module.dropout.p = 0.1 if rank else 0.5
    placed.recapture()
    found["an edit"] = told(step)
    job.module.dropout.p = 0.5
    placed.recapture()
    losses.append(float(step().detach()))
    job.module.norm = nn.BatchNorm1d(8) if rank else nn.Identity()
    found["a part"] = told(step)
    return found, time.monotonic() - began, losses


def test_what_differs_is_told_on_all_ranks_and_the_group_goes_on() -> None:
    expected = {
        "a dtype": ("rank 1: input args[0] has dtype torch.float64", "input args[0] has dtype torch.float64"),
        "a count": ("rank 1: the step takes 1 inputs", "the step takes 1 inputs"),
        "step and forward": ("differ in call: 'forward' against 'step'", "differ in call: 'step' against 'forward'"),
        "backward and step": ("differ in call: 'step' against 'backward'", "'backward' against 'step'"),
        "backward twice": ("backward was called twice", "backward was called twice"),
        "only one twice": ("rank 1: backward was called twice", "backward was called twice"),
        "a copy": ("differ in module: 1 against 0", "differ in module: 0 against 1"),
        "a mode": ("differ in call: 'forward' against 'evaluation'", "differ in call: 'evaluation' against 'forward'"),
        "an edit": ("differ in op 'native_dropout' of the step", "differ in op 'native_dropout' of the step"),
        "a part": ("differ in trained parameters", "differ in trained parameters"),
    }
    found = run_ranks(2, calls)
    for rank, (texts, seconds, losses) in enumerate(found):
        assert texts.keys() == expected.keys()
        for name, text in texts.items():
            assert expected[name][rank] in text, name
        assert seconds < SOON_S
        assert losses == found[0][2]


def test_a_new_capture_on_one_rank_alone_is_the_same_step() -> None:
    """The rank that captures again needs the shapes of what arrives, which the other has told it already."""

    def work(rank: int) -> list[float]:
        job = small_job()
        placed = apply_ranks(job, small_plan(), NAMES, timeout_s=LIMIT_S)
        losses = [float(placed.step(*job.args, *job.targets))]
        if rank:
            placed.recapture()
        return [*losses, float(placed.step(*job.args, *job.targets))]

    for losses in run_ranks(2, work):
        assert losses == pytest.approx([plain_step(Classifier(), small_job(), lr=0.0)] * 2, abs=1e-6)


def test_a_parameter_with_gaps_in_memory_is_one_on_all_ranks() -> None:
    def gappy(module: Classifier) -> Classifier:
        wide = torch.randn(8, 16, generator=torch.Generator().manual_seed(3))
        module.middle.weight = nn.Parameter(wide[:, ::2])
        return module

    job = small_job()
    gappy(job.module)
    plan = random_plan(capture(job), 2, 1)

    def work(rank: int) -> tuple[float, int]:
        mine = small_job()
        gappy(mine.module)
        placed = apply_ranks(mine, plan, NAMES, timeout_s=LIMIT_S)
        return float(placed.step(*mine.args, *mine.targets)), len(placed._variants)

    expected = plain_step(gappy(Classifier()), small_job())
    assert run_ranks(2, work) == [(pytest.approx(expected, abs=1e-6), 1)] * 2


def test_a_call_from_another_thread_is_refused_while_one_is_under_way() -> None:
    texts = []

    def work(rank: int) -> list[str]:
        job = small_job()
        placed = apply_ranks(job, small_plan(), NAMES, timeout_s=LIMIT_S)

        def beside() -> None:
            texts.append(told(lambda: placed.step(*job.args, *job.targets)))

        with placed._call.made("step"):
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join(SOON_S)
        placed.step(*job.args, *job.targets)
        return texts

    for (text,) in run_ranks(2, work):
        assert text.startswith("another thread is in a call of a module on these ranks")


def test_a_rank_without_parameters_takes_part_in_the_backward_pass() -> None:
    def linear() -> Job:
        torch.manual_seed(0)
        return replace(small_job(), module=nn.Linear(4, 3))

    graph = capture(linear())
    weights = [op.id for op in graph.ops if op.kind == "parameter"]
    plans = (random_plan(graph, 2, seed) for seed in range(20))
    plan = next(plan for plan in plans if all(plan.placement[op] == "d0" for op in weights) and plan.order["d1"])

    def work(rank: int) -> tuple[int, float, dict[str, torch.Tensor]]:
        job = linear()
        placed = apply_ranks(job, plan, NAMES, timeout_s=LIMIT_S)
        loss = placed(*job.args, *job.targets)
        loss.backward()
        with torch.no_grad():
            for parameter in placed.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
        held = sum(not parameter.is_meta for parameter in placed.parameters())
        return held, float(loss.detach()), placed.gathered_state_dict()

    job = linear()
    expected = plain_step(job.module, job)
    found = run_ranks(2, work)
    assert [held for held, _, _ in found] == [2, 0]
    for _, loss, state in found:
        assert loss == pytest.approx(expected, abs=1e-6)
        assert all(torch.allclose(state[name], value, atol=1e-6) for name, value in job.module.state_dict().items())


def test_an_error_after_the_ranks_have_agreed_ends_the_run() -> None:
    def refuse(*_: object) -> None:
        raise InputError("nothing to bind")

    def work(rank: int) -> tuple[str, str]:
        job = small_job()
        placed = apply_ranks(job, small_plan(), NAMES, timeout_s=LIMIT_S)
        if rank:
            RankVariant.bind = refuse  # type: ignore[assignment,method-assign]
        with pytest.raises((InputError, RunError)) as refused:
            placed.step(*job.args, *job.targets)
        return type(refused.value).__name__, str(refused.value)

    assert run_ranks(2, work) == [("RunError", "rank 1: nothing to bind"), ("InputError", "nothing to bind")]
