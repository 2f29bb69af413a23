"""The hook in DistributedDataParallel, over two and three gloo processes; each group is started once for all tests."""

import json
import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data_parallel.ternary.runs import (
    STEPS,
    Signs,
    digest,
    exact_after,
    mean_signs,
    network,
    resumed,
    told,
    trained,
    wrapped,
)
from processes import run_ranks

from dlplacer.data_parallel import TernaryState

pytestmark = pytest.mark.xdist_group("ternary hook")  # the ranks that all tests look at are run once

CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "shared": {"share_scaler": True},
    "sums": {"transport": "sums"},
}
SCALES = (1.0, 0.25, 3.0)
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "static graph": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "small buckets": {"bucket_cap_mb": 0.01},
}


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    TernaryState()  # Compiles into the cache, from which all ranks read.
    found = run_ranks(2, everything, 120)
    assert all(isinstance(one, dict) for one in found), found
    return found


def everything(rank: int) -> dict[str, Any]:
    """All findings of one of two ranks, which the tests below compare."""
    dist.init_process_group("gloo")
    runs = {name: trained(**choices) for name, choices in CHOICES.items()}
    found: dict[str, Any] = {
        "losses": {name: run[0] for name, run in runs.items()},
        "digests": {name: run[1] for name, run in runs.items()},
        "stats": {name: run[2].stats() for name, run in runs.items()},
        "many buckets": {name: trained(cap_mb=0.01, **choices)[1:] for name, choices in CHOICES.items()},
        "resumed": [resumed(at, STEPS) for at in (0, 3)],
        "exact": {(form, name): exact(form, name, 2) for form in FORMS for name in CHOICES},
        "accumulated": accumulated(rank),
        "scaled": scaled(rank),
    }
    found["many buckets"] = {name: (one, state.stats()) for name, (one, state) in found["many buckets"].items()}
    return found


def exact(form: str, name: str, count: int) -> bool:
    """True where every gradient of one magnitude is exact. Ranks that share a scaler have one magnitude in all."""
    scales = SCALES[:count] if name == "default" else (0.5,) * count
    return all(exact_after(Signs(), scales, FORMS[form], CHOICES[name]))


def accumulated(rank: int) -> bool:
    """Two backward passes without synchronization and one with it: the hook sees their sum."""
    module = Signs()
    ddp = wrapped(module, state := TernaryState())
    for _ in range(2):
        ddp.zero_grad()
        with ddp.no_sync():
            ddp(SCALES[rank]).backward()
            ddp(2 * SCALES[rank]).backward()
        ddp(SCALES[rank]).backward()
    expected = mean_signs(module.weights[0], 0, [4 * scale for scale in SCALES[:2]])
    return torch.allclose(module.weights[0].grad, expected, rtol=2e-7) and state.steps == 2


def scaled(rank: int) -> dict[str, list[tuple[bool, float]]]:
    """True where a GradScaler skips the step in which one rank's gradient overflows, and its scale behind it."""
    found: dict[str, list[tuple[bool, float]]] = {}
    for name, choices in CHOICES.items():
        torch.manual_seed(0)
        ddp = wrapped(network(), TernaryState(**choices))
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        found[name] = []
        for step in range(3):
            before = digest(ddp.module)
            optimizer.zero_grad()
            loss = ddp(torch.randn(4, 40)).square().mean()
            poison = {0: 1.0, 1: float("inf"), 2: float("nan")}[step] if rank == 1 else 1.0
            scaler.scale(loss * poison).backward()
            scaler.step(optimizer)
            scaler.update()
            found[name].append((digest(ddp.module) != before, scaler.get_scale()))
    return found


@pytest.mark.parametrize("name", CHOICES)
def test_replicas_stay_equal_to_the_bit(pair: Any, name: str) -> None:
    assert len({rank["digests"][name] for rank in pair}) == 1
    assert sum(rank["losses"][name][-1] for rank in pair) < 0.97 * sum(rank["losses"][name][0] for rank in pair)


@pytest.mark.parametrize("name", CHOICES)
def test_buckets_change_nothing(pair: Any, name: str) -> None:
    """Random numbers are those of the parameter's name: the same training with one bucket and with many.

    That they are rebuilt after the first step is part of it.
    """
    found, stats = pair[0]["many buckets"][name]
    assert found == pair[0]["digests"][name]
    assert sum(stats["transports"].values()) > sum(pair[0]["stats"][name]["transports"].values())
    assert stats["scalers"].keys() == {"0.weight", "2.weight"}


def test_a_resumed_run_is_the_same_run(pair: Any) -> None:
    from_the_start, from_the_middle = pair[0]["resumed"]
    assert from_the_start == from_the_middle
    assert from_the_middle[1]["steps"] == STEPS
    json.dumps(from_the_middle[1])


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_one_magnitude_arrive_exactly(pair: Any, form: str) -> None:
    assert all(rank["exact"][form, name] for rank in pair for name in CHOICES)


def test_gradients_of_one_magnitude_arrive_exactly_at_three_ranks() -> None:
    def work(rank: int) -> list[bool]:
        dist.init_process_group("gloo")
        return [exact("small buckets", name, 3) for name in CHOICES]

    assert run_ranks(3, work, 120) == [[True] * len(CHOICES)] * 3


def test_accumulated_gradients_are_sent_once(pair: Any) -> None:
    assert all(rank["accumulated"] for rank in pair)


@pytest.mark.parametrize("name", CHOICES)
def test_overflow_on_one_rank_skips_the_step_on_all(pair: Any, name: str) -> None:
    for rank in pair:
        assert rank["scaled"][name] == [(True, 8.0), (False, 4.0), (False, 2.0)]


@pytest.mark.parametrize("name", ["default", "sums"])
def test_a_killed_rank_ends_the_others_step_with_an_error_that_speaks(name: str) -> None:
    def work(rank: int) -> str:
        dist.init_process_group("gloo")
        ddp = wrapped(network(), TernaryState(**CHOICES[name]))
        for _ in range(2):  # In the second step buckets are rebuilt, which PyTorch does with collectives of its own.
            ddp(torch.ones(2, 40)).sum().backward()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return told(lambda: ddp(torch.ones(2, 40)).sum().backward())

    survivor, killed = run_ranks(2, work, 60, leaving=1)
    assert killed == ("ended",)
    assert "rank 0: the " in survivor
    assert "in step 2 with rank 1 failed; one of them has ended" in survivor
