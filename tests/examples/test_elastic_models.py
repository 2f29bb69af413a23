"""Elastic averaging: seconds of its variants against an event replay, and parts of a chip."""

import heapq

import pytest

from dlplacer.machines.costs.collectives import AlphaBeta

pytest.importorskip("paper_models", reason="the examples are in the checkout only")
from paper_models.elastic_cost import ElasticRun, exchange_s, most_parts, seconds_per_batch

RUN = ElasticRun(4, (1000, 3000, 4000), 0.010, 0.001, 0.0005, 0.0002, AlphaBeta(1e-4, 1e-7), AlphaBeta(1e-5, 1e-8))


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


def test_parts_of_a_chip() -> None:
    mb = 10**6
    assert most_parts(249 * mb, 687 * mb, 16 * 1024 * mb) == 16
    assert most_parts(249 * mb, 687 * mb, 16 * 1024 * mb, power_of_two=False) == 17
    assert most_parts(1, 0, 2**60 - 1) == 2**59
    assert most_parts(1, 0, 2**60) == 2**60
