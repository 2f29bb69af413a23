"""Elastic averaging: invariants of the updates, stability against eigenvalues, times against an event replay."""

import heapq
import random

import numpy as np
import pytest

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.elastic.breakdown import Breakdown, weak_scaling_efficiency
from dlplacer.data_parallel.elastic.stability import is_stable, require_stable
from dlplacer.data_parallel.elastic.updates import (
    Elastic,
    ElasticState,
    hogwild_replay,
    replay_events,
    synchronous_step,
    worker_event,
)
from dlplacer.data_parallel.elastic.variant_cost import (
    ElasticRun,
    exchange_s,
    most_parts,
    seconds_per_batch,
)
from dlplacer.machines.costs.alpha_beta import AlphaBeta

RULE = Elastic(0.1, 0.5, 0.9)
RUN = ElasticRun(4, (1000, 3000, 4000), 0.010, 0.001, 0.0005, 0.0002, AlphaBeta(1e-4, 1e-7), AlphaBeta(1e-5, 1e-8))


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


def test_asynchronous_time_is_that_of_an_event_replay() -> None:
    for compute_s in (0.0005, 0.004, 0.02):
        run = ElasticRun(4, RUN.layer_bytes, compute_s, 0.001, 0.0005, 0.0002, RUN.host_link, RUN.peer_link)
        served_s = 2 * run.weights_s(run.host_link) + run.centre_update_s
        away_s = run.compute_s + run.data_s + run.worker_update_s
        queue = [(away_s * (1 + worker / 10), worker) for worker in range(4)]
        free_s, done = 0.0, 0
        while done < 4000:
            arrival_s, worker = heapq.heappop(queue)
            free_s = max(free_s, arrival_s) + served_s
            heapq.heappush(queue, (free_s + away_s, worker))
            done += 1
        assert free_s / done == pytest.approx(seconds_per_batch(run, "async"), rel=0.01)


def test_variants_rank_as_in_the_paper() -> None:
    order = ("original-serial", "original", "sync1", "sync2", "sync3")
    times_s = [seconds_per_batch(RUN, variant) for variant in order]
    assert times_s == sorted(times_s, reverse=True)
    assert seconds_per_batch(RUN, "hogwild") <= seconds_per_batch(RUN, "async")


def test_original_by_hand() -> None:
    # Weights once over the host link: 1e-4 + 8000 B · 1e-7 = 0.9 ms; both ways 1.8 ms.
    assert seconds_per_batch(RUN, "original-serial") == pytest.approx(0.001 + 0.010 + 0.0018 + 0.0005 + 0.0002)
    assert seconds_per_batch(RUN, "original") == pytest.approx(0.001 + 0.010 + 0.0005 + 0.0002)
    # Two rounds up and two down over the host link: 3.6 ms; four terms at the centre; four batches.
    assert seconds_per_batch(RUN, "sync1") == pytest.approx((0.011 + 0.0036 + 0.0005 + 4 * 0.0002) / 4)


def test_packing_saves_startups_only() -> None:
    link = AlphaBeta(1e-3, 1e-9)
    layers = (100,) * 50
    assert exchange_s(layers, link, packed=False) - exchange_s(layers, link, packed=True) == pytest.approx(49e-3)
    assert link.half_rate_bytes == pytest.approx(1e6)


def test_parts_of_a_chip() -> None:
    mb = 10**6
    assert most_parts(249 * mb, 687 * mb, 16 * 1024 * mb) == 16
    assert most_parts(249 * mb, 687 * mb, 16 * 1024 * mb, power_of_two=False) == 17


def test_breakdown() -> None:
    row = Breakdown(10.0, 100, 4, {"gpu-gpu para": 0.1, "cpu-gpu data": 0.05, "for/backward": 0.85})
    assert row.communication_share == pytest.approx(0.15)
    assert row.batch_s == pytest.approx(0.025)
    assert row.seconds("for/backward") == pytest.approx(8.5)
    assert weak_scaling_efficiency((10.0, 12.5)) == (1.0, 0.8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Elastic(0, 1), "learning rate 0, strength 1"),
        (lambda: hogwild_replay(RULE, random_state(1), [("write", 0)], quadratic), "worker 0 writes .* without"),
        (lambda: seconds_per_batch(RUN, "sync4"), "no variant 'sync4'"),
        (lambda: most_parts(10, 10, 19), "one copy of weights and data needs 20 bytes; fast memory has 19"),
        (lambda: require_stable(0.1, 6.0, 4, 1.0), "on 4 workers diverges"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
