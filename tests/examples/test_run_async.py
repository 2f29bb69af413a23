"""Asynchronous training: against the oracle's events, replayed to the bit, and ended by a worker that is lost."""

import json
import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_parallel.elastic_updates import Elastic, ElasticState, hogwild_replay, replay_events
from torch import nn

pytest.importorskip("asynchronous", reason="the examples are in the checkout only")
from asynchronous import AsyncResult, AsyncWorker, WorkerError, run_async

SIZE, STEPS, RATE = 6, 8, 0.1
START = np.linspace(-1.0, 2.0, SIZE)


class Counted(nn.Module):
    """Σ k w² ÷ 2 − w, a frozen parameter, and buffers of both kinds."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(START + shift))
        self.frozen = nn.Parameter(torch.full((2,), shift), requires_grad=False)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scale", torch.tensor(1.0 + shift))

    def forward(self, curvature: int) -> torch.Tensor:
        self.calls += 1
        return (curvature * self.weight**2 / 2 - self.weight).sum()


def train(
    worker: AsyncWorker, die: tuple[int, ...] = (), hang: tuple[int, ...] = (), steps: int = STEPS, own: bool = False
) -> list[float]:
    model = worker.join(Counted(float(worker.rank)))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE) if own else worker.optimizer(lr=RATE)
    for step in range(steps + worker.rank):
        time.sleep(0.002)  # so that others come between
        optimizer.zero_grad()
        model(worker.rank + 1).backward()
        if step == 3 and worker.rank in die:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 3 and worker.rank in hang:
            time.sleep(1000)
        if own:
            worker.exchange()
        optimizer.step()
    return list(model.weight.tolist())


@pytest.fixture(scope="module", autouse=True)
def _modules_of_a_step() -> None:
    """A first step imports half of torch; forked workers inherit it."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.zero_grad()
    (parameter**2).sum().backward()
    optimizer.step()


def running(train: Any, **options: Any) -> AsyncResult:
    return run_async(train, **{"workers": 3, "pull": 0.2, "start_method": "fork", "timeout_s": 60.0, **options})


def quadratic(worker: int, weights: np.ndarray) -> np.ndarray:
    return (worker + 1) * weights - 1


def require_oracle(result: AsyncResult, state: ElasticState) -> None:
    assert np.allclose(result.centre["weight"].numpy(), state.centre, atol=1e-12, rtol=0)
    for rank, weights in enumerate(result.results):
        assert np.allclose(weights, state.workers[rank], atol=1e-12, rtol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", ["async", "round_robin"])
def test_events_have_the_oracle_s_effect_and_replay_to_the_bit(tmp_path: Path, rule: str, momentum: float) -> None:
    result = running(train, rule=rule, momentum=momentum, record=tmp_path / "events.json")
    assert len(result.events) == 3 * STEPS + 3
    if rule == "round_robin":
        assert result.events == (*[0, 1, 2] * STEPS, 1, 2, 2)
    expected = replay_events(
        Elastic(RATE, 0.2 / RATE, momentum), ElasticState.equal(START, 3), result.events, quadratic
    )
    require_oracle(result, expected)
    again = running(train, rule=rule, momentum=momentum, replay=tmp_path / "events.json")
    assert again.events == result.events
    assert again.results == result.results
    assert all(torch.equal(again.centre[name], result.centre[name]) for name in result.centre)


def test_any_order_can_be_forced_and_hogwild_with_one_in_flight_is_asynchronous(tmp_path: Path) -> None:
    order = [2, 2, 0, 1, 2, 1, 0, 0, 2, 1] + [0] * (STEPS - 3) + [1] * (STEPS - 2) + [2] * (STEPS - 2)
    settings = {"workers": 3, "rule": "async", "momentum": 0.0, "pull": 0.2, "sync_every": 1, "seed": 0}
    common = {"format": "dlplacer.events/1", **settings}
    path = tmp_path / "events.json"
    path.write_text(json.dumps({**common, "lock": True, "events": order}))
    asynchronous = running(train, replay=path)
    require_oracle(asynchronous, replay_events(Elastic(RATE, 2.0), ElasticState.equal(START, 3), order, quadratic))
    paired = [f"{kind} {worker}" for worker in order for kind in ("read", "write")]
    path.write_text(json.dumps({**common, "lock": False, "events": paired}))
    unlocked = running(train, replay=path, lock=False)
    assert unlocked.results == asynchronous.results
    assert torch.equal(unlocked.centre["weight"], asynchronous.centre["weight"])


def test_hogwild_s_reads_and_writes_have_the_oracle_s_effect_and_replay(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    result = running(train, lock=False, record=path)
    events = [tuple(event.split()) for event in json.loads(path.read_text())["events"]]
    events = [(kind, int(worker)) for kind, worker in events]
    expected = hogwild_replay(Elastic(RATE, 2.0), ElasticState.equal(START, 3), events, quadratic)
    require_oracle(result, expected)
    again = running(train, lock=False, replay=path)
    assert again.results == result.results
    assert torch.equal(again.centre["weight"], result.centre["weight"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", ["async", "round_robin", "one_at_a_time"])
def test_without_a_pull_the_centre_does_sgd_with_momentum(tmp_path: Path, rule: str, momentum: float) -> None:
    options = {"rule": rule, "momentum": momentum, "pull": None}
    result = running(train, **options, record=tmp_path / "events.json")
    centre, velocity, weights = START.copy(), np.zeros(SIZE), [START] * 3
    for worker in result.events:
        # One at a time a worker computes from the newest values, else from those that it has taken after its last push.
        origin = centre if rule == "one_at_a_time" else weights[worker]
        velocity = momentum * velocity - RATE * quadratic(worker, origin)
        centre = weights[worker] = centre + velocity
    assert len(result.events) == 3 * STEPS + 3
    assert np.allclose(result.centre["weight"].numpy(), centre, atol=1e-12, rtol=0)
    again = running(train, **options, replay=tmp_path / "events.json")
    assert again.results == result.results
    assert torch.equal(again.centre["weight"], result.centre["weight"])


@pytest.mark.parametrize("options", [{}, {"rule": "round_robin"}, {"rule": "one_at_a_time"}, {"lock": False}])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_worker_ends_all_is_named_and_the_centre_is_kept(options: dict[str, Any], lost: int) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(WorkerError, match=f"worker {lost} ended with exit code -9") as caught:
        running(partial(train, die=(lost,)), **options)
    assert multiprocessing.active_children() == before
    # The centre has left its start, and its other tensors are the first worker's.
    centre = caught.value.centre
    assert not np.allclose(centre["weight"].numpy(), START)
    assert centre["frozen"].tolist() == [0.0, 0.0]
    assert 0 < int(centre["calls"]) <= STEPS


@pytest.mark.parametrize("rule", ["round_robin", "one_at_a_time"])
def test_an_inactive_worker_ends_all_and_is_named(rule: str) -> None:
    with pytest.raises(WorkerError, match="worker 1 was inactive for 2 s"):
        running(partial(train, hang=(1,)), rule=rule, timeout_s=2.0)
