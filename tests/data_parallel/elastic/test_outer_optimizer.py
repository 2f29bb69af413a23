"""EASGD, local SGD and DiLoCo on ranks, against the oracle and against plain simulations."""

import copy
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from data_parallel.elastic.simulated_workers import SimulatedWorkers
from data_parallel.elastic_updates import Elastic, ElasticState, synchronous_step
from processes import run_ranks
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel import OuterOptimizer, diloco, easgd, local_sgd
from dlplacer.data_parallel.elastic import worker_group

pytestmark = pytest.mark.xdist_group("outer optimizer")  # the ranks that all tests look at are run once

RANKS, STEPS, SIZE = 3, 11, 7
START = np.linspace(-1.0, 2.0, SIZE)
RULES = {
    "easgd": (easgd(0.2), 1),
    "easgd of period 4": (easgd(0.2), 4),
    "easgd of new values": (easgd(0.2, delay=0), 2),
    "easgd delayed": (easgd(0.2, delay=3), 4),
    "local": (local_sgd(), 3),
    "local delayed": (local_sgd(delay=2), 3),
    "local delayed a period": (local_sgd(delay=3), 3),
    "diloco": (diloco(), 2),
    "diloco delayed": (diloco(delay=1), 2),
}


class Quadratic(nn.Module):
    """Σ (rank + 1) w² ÷ 2 − w over two tensors of float64: its gradient is (rank + 1) w − 1."""

    def __init__(self, rank: int, start: np.ndarray = START) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(start[:3]))
        self.second = nn.Parameter(torch.tensor(start[3:]).view(2, 2))
        self.rank = rank

    def forward(self) -> torch.Tensor:
        flat = self.flat()
        return ((self.rank + 1) * flat**2 / 2 - flat).sum()

    def flat(self) -> torch.Tensor:
        return torch.cat([self.first, self.second.reshape(-1)])


def quadratic(worker: int, weights: np.ndarray) -> np.ndarray:
    return (worker + 1) * weights - 1


def trained(rank: int, rule: Any, sync_every: int, momentum: float = 0.9, **options: Any) -> dict[str, Any]:
    # Ranks begin with different weights: all take the first rank's.
    model = Quadratic(rank, START + rank)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    with OuterOptimizer(model, inner, rule, sync_every=sync_every, **options) as outer:
        for _ in range(STEPS):
            step(model, inner)
    centre = outer.centre_state_dict()
    return {
        "weights": model.flat().detach().numpy(),
        "centre": np.concatenate([centre["first"].numpy(), centre["second"].reshape(-1).numpy()]),
        "stats": outer.stats(),
    }


def step(model: nn.Module, inner: torch.optim.Optimizer, *inputs: Any) -> None:
    inner.zero_grad()
    model(*inputs).backward()
    inner.step()


def all_rules(rank: int) -> dict[str, Any]:
    dist.init_process_group("gloo")
    found = {name: trained(rank, rule, period) for name, (rule, period) in RULES.items()}
    for overlap in ("sync1", "sync2", "sync3", False):
        found[f"easgd {overlap}"] = trained(rank, easgd(0.2), 1, overlap=overlap)
        found[f"delayed {overlap}"] = trained(rank, easgd(0.2, delay=3), 4, overlap=overlap)
    found["buffers"] = buffers(rank)
    found["resumed"] = resumed(rank)
    return found


class Buffers(nn.Module):
    """A statistic of its inputs in floats, a count of its calls, a flag and what nobody shares."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
        self.register_buffer("mean", torch.tensor([1.0 + rank, 5.0]))
        self.register_buffer("calls", torch.tensor(2**40 + 1000 * rank))
        self.register_buffer("flag", torch.tensor([rank == 0, True]))
        self.register_buffer("own", torch.tensor(float(rank)), persistent=False)

    def forward(self) -> torch.Tensor:
        self.mean = self.mean + self.rank
        self.calls += 1
        return self.weight.float().sum()


def buffers(rank: int) -> dict[str, Any]:
    found = {}
    for delay in (0, 1):
        model = Buffers(rank)
        inner = torch.optim.SGD(model.parameters(), lr=2**-4)
        with OuterOptimizer(model, inner, easgd(0.25, delay=delay), sync_every=2) as outer:
            for _ in range(2):
                step(model, inner)
        state = {name: tensor.tolist() for name, tensor in model.named_buffers()}
        found[delay] = {**state, "frozen": model.frozen.tolist(), "centre": outer.centre_state_dict()["mean"].tolist()}
    return found


def resumed(rank: int) -> dict[Any, bool]:
    """True where a run that is cut after any step goes on to the bit, whatever is loaded first."""
    equal = {}
    for name in ("easgd", "easgd delayed", "local delayed a period", "diloco delayed"):
        rule, period = RULES[name]
        model = Quadratic(rank, START + rank)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        saved, weights = [], []
        with OuterOptimizer(model, inner, rule, sync_every=period) as outer:
            for _ in range(2 * period + 2):
                saved.append(copy.deepcopy((model.state_dict(), inner.state_dict(), outer.state_dict())))
                step(model, inner)
                weights.append(model.flat().detach().clone())
        for cut in range(period + 1):
            model = Quadratic(rank, START + rank)
            inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if cut % 2:
                model.load_state_dict(saved[cut][0])
            outer = OuterOptimizer(model, inner, rule, sync_every=period)
            if cut % 3 == 0:
                outer.load_state_dict(saved[cut][2])
            with outer:
                outer.load_state_dict(saved[cut][2])
                inner.load_state_dict(saved[cut][1])
                model.load_state_dict(saved[cut][0])
                step(model, inner)
            with outer:
                for _ in range(period):
                    step(model, inner)
            equal[name, cut] = torch.equal(model.flat(), weights[cut + period])
    return equal


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(RANKS, all_rules)


@pytest.mark.parametrize("name", RULES)
def test_rules_are_the_simulated_ones(ranks: list[dict[str, Any]], name: str) -> None:
    rule, period = RULES[name]
    velocity = np.zeros(SIZE)

    def nesterov(centre: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        nonlocal velocity
        velocity = 0.9 * velocity + gradient
        return centre - 0.7 * (gradient + 0.9 * velocity)

    outer = {"outer": nesterov} if rule.name == "diloco" else {}
    expected = SimulatedWorkers([START] * RANKS, quadratic, momentum=0.9, **outer)
    expected.train(STEPS, period, rule.delay, rule.pull)
    for rank in range(RANKS):
        assert np.allclose(ranks[rank][name]["weights"], expected.weights[rank], atol=1e-12, rtol=0)
        assert np.allclose(ranks[rank][name]["centre"], expected.centre, atol=1e-12, rtol=0)
        assert ranks[rank][name]["stats"]["synchronisations"] == STEPS // period
        assert np.array_equal(ranks[rank][name]["centre"], ranks[0][name]["centre"])


def test_the_three_overlaps_are_the_paper_s_rule_and_equal_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    rule, state = Elastic(0.1, 2.0, 0.9), ElasticState.equal(START, RANKS)
    for _ in range(STEPS):
        state = synchronous_step(rule, state, np.stack([quadratic(w, state.workers[w]) for w in range(RANKS)]))
    for rank in range(RANKS):
        assert np.allclose(ranks[rank]["easgd"]["weights"], state.workers[rank], atol=1e-12, rtol=0)
        for overlap in ("sync1", "sync2", "sync3", False):
            for same, name in (("easgd", f"easgd {overlap}"), ("easgd delayed", f"delayed {overlap}")):
                assert np.array_equal(ranks[rank][name]["weights"], ranks[rank][same]["weights"])
                assert np.array_equal(ranks[rank][name]["centre"], ranks[rank][same]["centre"])


def test_float_buffers_are_averaged_and_integer_ones_are_the_first_rank_s(ranks: list[dict[str, Any]]) -> None:
    # All begin with rank 0's mean of 1 and count of 2^40; rank r adds r to the mean in each of two calls. Values of
    # after the second call: 1 + 2r, on average 3. With a delay those of after the first, 1 + r, are averaged to 2, and
    # each adds its own r since then.
    for rank in range(RANKS):
        now, delayed = ranks[rank]["buffers"][0], ranks[rank]["buffers"][1]
        assert (now["mean"], now["centre"]) == ([3.0, 7.0], [3.0, 7.0])
        assert (delayed["mean"], delayed["centre"]) == ([2.0 + rank, 6.0 + rank], [2.0, 6.0])
        assert now["calls"] == delayed["calls"] == 2**40 + 2
        assert now["flag"] == delayed["flag"] == [True, True]
        assert now["own"] == delayed["own"] == float(rank)
        assert now["frozen"] == [0.0, 0.0]


def test_a_run_cut_anywhere_goes_on_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in range(RANKS):
        assert [case for case, equal in ranks[rank]["resumed"].items() if not equal] == []


def test_a_pull_of_eta_rho_follows_the_learning_rate() -> None:
    model, rates, rho = Quadratic(0), [0.1, 0.05, 0.025, 0.0125], 2.0
    inner = torch.optim.SGD(model.parameters(), lr=rates[0])
    schedule = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
    weights = centre = START
    with OuterOptimizer(model, inner, easgd(rho=rho)) as outer:
        for rate in rates:
            step(model, inner)
            schedule.step()
            difference = weights - centre
            weights = weights - rate * (weights - 1) - rate * rho * difference
            centre = centre + rate * rho * difference
    assert np.allclose(model.flat().detach().numpy(), weights, atol=1e-12, rtol=0)
    assert np.allclose(outer.centre_state_dict()["first"].numpy(), centre[:3], atol=1e-12, rtol=0)
    inner.param_groups[0]["lr"] = 1.0
    with pytest.raises(InputError, match="pull 2 with 1 workers"), outer:
        step(model, inner)


def dying(rank: int, dead: int) -> None:
    worker_group._LEAST_PATIENCE_S = 2.0
    dist.init_process_group("gloo")
    model = Quadratic(rank)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with OuterOptimizer(model, inner, easgd(), timeout_s=20.0):
        for count in range(4):
            if rank == dead and count == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            step(model, inner)


@pytest.mark.parametrize("dead", [0, 2])
def test_a_killed_rank_is_named(dead: int) -> None:
    found = run_ranks(3, partial(dying, dead=dead), leaving=1)
    assert found.pop(dead) == ("ended",)
    for _, kind, message in found:
        assert kind == "RunError"
        assert f"rank {dead} was lost or is stuck" in message
