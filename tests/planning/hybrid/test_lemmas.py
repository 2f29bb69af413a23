"""The lemmas by linear scan."""

import random

import pytest

from dlplacer.planning.hybrid.scaling import (
    SerialOverhead,
    fewest_channels,
    fewest_servers,
    most_overhead_ratio,
    transfer_s,
)


def test_examples_of_lemma_31() -> None:
    assert most_overhead_ratio(0.8, 4) == pytest.approx(1 / 11)
    overhead = SerialOverhead(0.1)
    assert overhead.workers_for(3) == 4
    assert 3 * overhead.efficiency(3) == pytest.approx(2.54, abs=0.005)
    assert 4 * overhead.efficiency(4) == pytest.approx(3.14, abs=0.005)


def test_lemma_32_is_the_fewest_and_exact_at_the_boundary() -> None:
    # 2 · 0.25 GB · 8 workers = 4 GB in 2 s over 1 GB/s channels: exactly 2; a byte more needs 3.
    assert fewest_servers(0.25e9, 8, 1e9, 2.0) == 2
    assert fewest_channels(4e9 + 1, 1e9, 2.0) == 3
    assert fewest_channels(0, 1e9, 1.0) == 1
    draw = random.Random(2)
    for _ in range(300):
        size, workers, rate, compute_s = (
            draw.uniform(1, 1e9),
            draw.randint(1, 64),
            draw.uniform(1e6, 1e10),
            draw.random(),
        )
        servers = fewest_servers(size, workers, rate, compute_s)
        assert transfer_s(size, workers, rate, servers) <= compute_s * (1 + 1e-9)
        assert servers == 1 or transfer_s(size, workers, rate, servers - 1) > compute_s * (1 - 1e-9)
