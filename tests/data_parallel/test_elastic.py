"""Elastic averaging: invariants of the updates, and stability against eigenvalues."""

import random

import numpy as np
import pytest
from data_parallel.elastic_stability import is_stable, require_stable
from data_parallel.elastic_updates import (
    Elastic,
    ElasticState,
    hogwild_replay,
    replay_events,
    synchronous_step,
    worker_event,
)

from dlplacer.core.errors import InputError

RULE = Elastic(0.1, 0.5, 0.9)


def random_state(seed: int, workers: int = 3, size: int = 5) -> ElasticState:
    draw = np.random.default_rng(seed)
    return ElasticState(
        draw.standard_normal((workers, size)), draw.standard_normal((workers, size)), draw.standard_normal(size)
    )


def quadratic(worker: int, weights: np.ndarray) -> np.ndarray:
    return (worker + 1) * weights - 1


def test_no_gradient_conserves_the_sum_and_equal_weights_stay() -> None:
    rule = Elastic(0.1, 0.5)
    state = random_state(1)
    after = synchronous_step(rule, state, np.zeros_like(state.workers))
    assert np.allclose(after.workers.sum(0) + after.centre, state.workers.sum(0) + state.centre)
    equal = ElasticState.equal(np.arange(4.0), 3)
    still = synchronous_step(rule, equal, np.zeros_like(equal.workers))
    assert np.array_equal(still.workers, equal.workers)
    assert np.array_equal(still.centre, equal.centre)


def test_without_strength_workers_are_independent_and_at_full_attraction_the_centre_is_the_mean() -> None:
    state = random_state(2)
    gradients = np.ones_like(state.workers)
    loose = synchronous_step(Elastic(0.1, 0.0), state, gradients)
    assert np.allclose(loose.workers, state.workers - 0.1)
    assert np.array_equal(loose.centre, state.centre)
    full = synchronous_step(Elastic(0.1, 10 / 3), state, gradients)
    assert np.allclose(full.centre, state.workers.mean(0))


def test_centre_is_an_outer_sgd_on_the_pseudo_gradient() -> None:
    state, rule = random_state(3), Elastic(0.1, 0.7)
    after = synchronous_step(rule, state, np.zeros_like(state.workers))
    outer_rate = 3 * rule.pull
    assert np.allclose(after.centre, state.centre - outer_rate * (state.centre - state.workers.mean(0)))


def test_single_worker_event_equals_a_synchronous_step() -> None:
    state = random_state(4, workers=1)
    gradient = quadratic(0, state.workers[0])
    one, all_ = worker_event(RULE, state, 0, gradient), synchronous_step(RULE, state, gradient[None])
    assert np.allclose(one.workers, all_.workers)
    assert np.allclose(one.centre, all_.centre)


def test_hogwild_with_one_in_flight_is_asynchronous_and_replays_are_exact() -> None:
    draw = random.Random(5)
    order = [draw.randrange(3) for _ in range(40)]
    state = random_state(5)
    asynchronous = replay_events(RULE, state, order, quadratic)
    paired = [(kind, worker) for worker in order for kind in ("read", "write")]
    unlocked = hogwild_replay(RULE, state, paired, quadratic)
    assert np.allclose(unlocked.centre, asynchronous.centre)
    assert np.allclose(unlocked.workers, asynchronous.workers)
    assert replay_events(RULE, state, order, quadratic).centre.tobytes() == asynchronous.centre.tobytes()
    overlapped = hogwild_replay(RULE, state, [("read", 0), ("read", 1), ("write", 0), ("write", 1)], quadratic)
    assert not np.allclose(overlapped.centre, replay_events(RULE, state, [0, 1], quadratic).centre)


def test_stability_is_the_spectral_radius() -> None:
    draw = random.Random(6)
    for _ in range(3000):
        workers, shrink, pull = draw.randint(1, 8), draw.uniform(0.01, 3), draw.uniform(0.01, 1.5)
        size = workers + 1
        matrix = np.zeros((size, size))
        for worker in range(workers):
            matrix[worker, worker], matrix[worker, workers] = 1 - shrink - pull, pull
            matrix[workers, worker] = pull
        matrix[workers, workers] = 1 - workers * pull
        radius = np.abs(np.linalg.eigvals(matrix)).max()
        if abs(radius - 1) > 1e-9:
            assert is_stable(shrink, pull, workers) == (radius < 1), (shrink, pull, workers)


def test_stable_rules_converge_and_unstable_ones_do_not() -> None:
    state = ElasticState.equal(np.array([5.0]), 4)
    for strength, converges in ((1.0, True), (6.0, False)):
        rule, now = Elastic(0.1, strength), state
        now = ElasticState(now.workers + np.arange(4.0)[:, None], now.velocities, now.centre)
        for _ in range(400):
            now = synchronous_step(rule, now, now.workers)
        assert (abs(now.centre[0]) < 1e-3) == converges
        assert is_stable(0.1, rule.pull, 4) == converges


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Elastic(0, 1), "learning rate 0, strength 1"),
        (lambda: hogwild_replay(RULE, random_state(1), [("write", 0)], quadratic), "worker 0 writes .* without"),
        (lambda: require_stable(0.1, 6.0, 4, 1.0), "on 4 workers diverges"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
