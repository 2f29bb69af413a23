"""Codec, noise, bytes and performance of ternary gradients."""

import math

import numpy as np
import pytest

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary.codec import averaged, clipped, pack, shared_scaler, ternarize, unpack
from dlplacer.data_parallel.ternary.noise import gaussian_noise, steps_ratio
from dlplacer.data_parallel.ternary.throughput import Cluster, GpuWorkload, samples_per_s, step_s, ternary_speedups
from dlplacer.data_parallel.ternary.transports import (
    exchange_named,
    ideal_pull_ratio,
    ideal_push_ratio,
    sent_bytes,
    stops_paying_at,
)

CLUSTER = Cluster(4, 10e9, 6e9, 0.125e9, 50e-6)


def gaussian(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_closed_form_at_the_papers_clip() -> None:
    noise = gaussian_noise(2.5)
    assert noise.length_loss == pytest.approx(0.01128, abs=5e-6)
    assert noise.turned_degrees == pytest.approx(2.746, abs=5e-4)
    assert noise.zero_share == pytest.approx(0.682, abs=5e-4)
    assert noise.added_variance == pytest.approx(1.007, abs=5e-4)
    assert gaussian_noise(2.0).length_loss == pytest.approx(0.0406, abs=5e-5)
    assert gaussian_noise(3.0).added_variance == pytest.approx(1.40, abs=5e-3)


def test_codec_does_what_the_closed_form_says() -> None:
    gradient = gaussian(400_000)
    held, noise = clipped(gradient), gaussian_noise(2.5)
    assert 1 - np.linalg.norm(held) / np.linalg.norm(gradient) == pytest.approx(noise.length_loss, rel=0.05)
    ternary = ternarize(gradient, key=(1, 2, 3, 4))
    assert set(np.unique(ternary.codes)) == {-1, 0, 1}
    assert np.mean(ternary.codes == 0) == pytest.approx(noise.zero_share, abs=0.003)
    assert np.mean((ternary.decoded() - held) ** 2) == pytest.approx(noise.added_variance, rel=0.02)
    assert np.all(ternary.codes * np.sign(gradient) >= 0)


def test_codec_is_unbiased() -> None:
    gradient = gaussian(200, seed=5)
    held = clipped(gradient)
    draws = 4000
    decoded = [ternarize(gradient, key=(9, step, 0, 0)).decoded() for step in range(draws)]
    mean = np.mean(decoded, axis=0, dtype=np.float64)
    scaler = float(np.abs(held).max())
    deviation = np.sqrt(np.maximum(scaler * np.abs(held) - held**2, 0) / draws)
    assert np.all(np.abs(mean - held) <= 5 * deviation + 1e-6)


def test_elements_at_the_scaler_are_certain() -> None:
    # Alternating signs: the deviation is 1, so nothing is clipped, and every element is as large as the scaler.
    gradient = np.tile(np.array([1.0, -1.0], dtype=np.float32), 8)
    assert np.array_equal(ternarize(gradient, key=(0,)).decoded(), gradient)


@pytest.mark.parametrize(
    "gradient",
    [np.zeros(6), np.full(1, 3.0), np.full(5, -2.0), 10 + 0.1 * np.arange(8)],
    ids=["zero", "one element", "constant", "far from zero"],
)
def test_clipping_leaves_what_it_would_destroy(gradient: np.ndarray) -> None:
    values = gradient.astype(np.float32)
    assert np.array_equal(clipped(values), values)
    assert np.isfinite(ternarize(values, key=(0,)).decoded()).all()


def test_draws_depend_on_the_key_alone() -> None:
    gradient = gaussian(1000)
    first = ternarize(gradient, key=(1, 7, 0, 0)).codes
    assert np.array_equal(first, ternarize(gradient, key=(1, 7, 0, 0)).codes)
    assert not np.array_equal(first, ternarize(gradient, key=(1, 7, 1, 0)).codes)


def test_sum_under_a_shared_scaler_does_not_depend_on_the_order_of_ranks() -> None:
    gradients = [gaussian(5000, seed) for seed in range(5)]
    scaler = shared_scaler(gradients)
    ternaries = [ternarize(gradient, (0, 0, rank, 0), scaler) for rank, gradient in enumerate(gradients)]
    forward = averaged(ternaries)
    assert forward.tobytes() == averaged(ternaries[3:] + ternaries[:3]).tobytes()
    assert np.abs(sum(ternary.codes.astype(int) for ternary in ternaries)).max() <= len(ternaries)
    own = [ternarize(gradient, (0, 0, rank, 0)) for rank, gradient in enumerate(gradients)]
    assert np.allclose(averaged(own), np.mean([ternary.decoded() for ternary in own], axis=0))


def test_packing_gives_every_length_back() -> None:
    draw = np.random.default_rng(3)
    for length in range(18):
        codes = draw.integers(-1, 2, length).astype(np.int8)
        packed = pack(codes)
        assert len(packed) == math.ceil(length / 4)
        assert np.array_equal(unpack(packed, (length,)), codes)


def test_ratios_of_the_paper() -> None:
    assert ideal_push_ratio() == pytest.approx(20.19, abs=0.005)
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
    # A worker pushes its whole gradient to the servers, none of which is a worker; what it pulls others send.
    assert sent_bytes("none/servers", elements, ranks) == pytest.approx(elements * 4)
    assert sent_bytes("fp16/servers", elements, ranks) == pytest.approx(elements * 2)
    assert sent_bytes("ternary/servers", elements, ranks) == pytest.approx(elements * 2 / 8)


def test_noise_costs_nothing_at_large_batches_and_at_most_the_variance() -> None:
    assert steps_ratio(1e9, 1000) == pytest.approx(1, abs=1e-5)
    assert steps_ratio(1, 1e9) == pytest.approx(1 + gaussian_noise(2.5).added_variance, abs=1e-5)
    assert 1 < steps_ratio(512, 512) < 2.01


def test_performance_model_by_hand() -> None:
    # One GPU: its own step. Four GPUs of a machine: compute 0.9 s shared out, plus 0.6e9 B at 6 GB/s, 2 rounds at 10.
    work = GpuWorkload(1.0, 64, 0.6e9)
    assert step_s(CLUSTER, work, 1) == pytest.approx(1.0)
    assert step_s(CLUSTER, work, 4) == pytest.approx(0.9 / 4 + 0.1 + 2 * 0.06)
    # 16 GPUs: two more rounds between 4 machines at 0.125 GB/s.
    assert step_s(CLUSTER, work, 16, "weak") == pytest.approx(0.9 + 0.1 + 0.12 + 2 * (50e-6 + 4.8))
    assert samples_per_s(CLUSTER, work, 16, "weak") == pytest.approx(16 * 64 / step_s(CLUSTER, work, 16, "weak"))


def test_ternary_bytes_by_hand() -> None:
    # Pushed: 2 bits for 32. Pulled: the sum of 4 codes has 9 levels, 4 bits for 32. On average 3 bits for 32.
    work = GpuWorkload(1.0, 64, 0.6e9)
    assert step_s(CLUSTER, work, 4, ternary=True) == pytest.approx(0.9 / 4 + (0.1 + 2 * 0.06) * 3 / 32)


def test_ternary_gains_with_bytes_and_slow_links() -> None:
    heavy, light = GpuWorkload(0.3, 64, 0.24e9), GpuWorkload(0.3, 64, 0.03e9)
    counts = [2**power for power in range(10)]
    gains = ternary_speedups(CLUSTER, heavy, counts)
    assert gains[512] > ternary_speedups(CLUSTER, light, counts)[512] > 1
    fast = Cluster(4, 10e9, 6e9, 12.5e9, 2e-6)
    assert gains[512] > ternary_speedups(fast, heavy, counts)[512]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussian_noise(0), "clip is 0 standard deviations"),
        (lambda: ternarize(np.array([1.0, np.inf], dtype=np.float32), (0,)), "infinite or undefined"),
        (lambda: ternarize(gaussian(10), (0,), scaler=0.01), "scaler is 0.01; it must be at least"),
        (lambda: exchange_named("int9"), "there is no exchange 'int9'; use one of none/all-reduce"),
        (lambda: ideal_pull_ratio(0), "there are 0 ranks"),
        (lambda: Cluster(0, 1, 1, 1, 0), "gpus_per_machine is 0"),
        (lambda: step_s(CLUSTER, GpuWorkload(0.01, 1, 1e9), 2), "its gradient alone needs 0.166667 s"),
        (lambda: step_s(CLUSTER, GpuWorkload(1, 1, 1e9), 2, "diagonal"), "scaling is 'diagonal'"),
        (lambda: steps_ratio(0, 1), "batch is 0"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
