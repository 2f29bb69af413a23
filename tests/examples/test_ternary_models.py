"""Ternary gradients: noise in closed form, bytes by transport, and the performance model of appendix B."""

import pytest

from dlplacer.machines.costs.gradient_codecs import CODECS

pytest.importorskip("paper_models", reason="the examples are in the checkout only")
from paper_models.ternary_noise import gaussian_noise
from paper_models.ternary_throughput import Cluster, GpuWorkload, samples_per_s, step_s
from paper_models.ternary_transports import (
    exchange_named,
    ideal_pull_ratio,
    sent_bytes,
    stops_paying_at,
)

CLUSTER = Cluster(4, 10e9, 6e9, 0.125e9, 50e-6)


def test_closed_form_at_the_papers_clip() -> None:
    noise = gaussian_noise(2.5)
    assert noise.length_loss == pytest.approx(0.01128, abs=5e-6)
    assert noise.turned_degrees == pytest.approx(2.746, abs=5e-4)
    assert noise.zero_share == pytest.approx(0.682, abs=5e-4)
    assert noise.added_variance == pytest.approx(1.007, abs=5e-4)
    assert gaussian_noise(2.0).length_loss == pytest.approx(0.0406, abs=5e-5)
    assert gaussian_noise(3.0).added_variance == pytest.approx(1.40, abs=5e-3)


def test_ratios_of_the_paper() -> None:
    assert [round(ideal_pull_ratio(ranks), 2) for ranks in (2, 8, 64, 512)] == [13.78, 7.83, 4.56, 3.2]
    sums = exchange_named("ternary/sums")
    assert [round(sums.ratio(ranks), 1) for ranks in (2, 8, 64, 512)] == [12.8, 9.1, 6.4, 4.9]
    assert exchange_named("ternary/int8").ratio(100) == pytest.approx(4)
    gather = exchange_named("ternary/all-gather")
    assert all(gather.ratio(ranks) == pytest.approx(32 / ranks) for ranks in (2, 5, 31, 200))


def test_where_exchanges_stop_paying() -> None:
    assert stops_paying_at("ternary/all-gather") == 32
    assert stops_paying_at("ternary/all-gather", against="fp16/all-reduce") == 16
    assert stops_paying_at("ternary/int8") == 128
    assert stops_paying_at("ternary/sums") is None


def test_bytes_equal_messages_counted_one_by_one() -> None:
    # Every rank holds N chunks. Ring: N−1 steps of one chunk, twice. All-gather: N−1 sends of everything.
    elements, ranks = 1200, 6
    chunk = elements // ranks
    assert sent_bytes("none/all-reduce", elements, ranks) == pytest.approx(2 * (ranks - 1) * chunk * 4)
    assert sent_bytes("ternary/all-gather", elements, ranks) == pytest.approx((ranks - 1) * elements * 2 / 8)
    assert sent_bytes("ternary/sums", elements, ranks) == pytest.approx((ranks - 1) * chunk * (2 + 4) / 8)


def test_performance_model_by_hand() -> None:
    # One GPU: its own step. Four GPUs of a machine: compute 0.9 s shared out, plus 0.6e9 B at 6 GB/s, 2 rounds at 10.
    work = GpuWorkload(1.0, 64, 0.6e9)
    assert step_s(CLUSTER, work, 1) == pytest.approx(1.0)
    assert step_s(CLUSTER, work, 4) == pytest.approx(0.9 / 4 + 0.1 + 2 * 0.06)
    # 16 GPUs: two more rounds between 4 machines at 0.125 GB/s.
    assert step_s(CLUSTER, work, 16, "weak") == pytest.approx(0.9 + 0.1 + 0.12 + 2 * (50e-6 + 4.8))
    assert samples_per_s(CLUSTER, work, 16, "weak") == pytest.approx(16 * 64 / step_s(CLUSTER, work, 16, "weak"))


def test_the_planner_takes_the_noise_of_the_closed_form() -> None:
    assert CODECS["ternary"] == pytest.approx(1 + gaussian_noise(2.5).added_variance, abs=5e-4)
