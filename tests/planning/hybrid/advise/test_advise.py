"""The lemmas by linear scan, and the choice of alternatives by brute force."""

import random
from itertools import product

import pytest

from dlplacer.planning.hybrid.advise.gpus import most_overhead_ratio
from dlplacer.planning.hybrid.advise.layer_alternatives import Alternative, LayerAlternatives, choose_alternatives
from dlplacer.planning.hybrid.advise.servers import fewest_channels, fewest_servers, transfer_s
from dlplacer.planning.hybrid.scaling_efficiency import SerialOverhead


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


def brute_force(layers: list[list[Alternative]], bound_bytes: int) -> float | None:
    fitting = [
        LayerAlternatives(alternatives)
        for alternatives in product(*layers)
        if LayerAlternatives(alternatives).memory_bytes <= bound_bytes
    ]
    return min((choice.time_s for choice in fitting), default=None)


def test_choice_equals_brute_force_and_improves_with_memory() -> None:
    draw = random.Random(3)
    for _ in range(60):
        layers = [
            [
                Alternative(str(alternative), draw.randint(0, 30) / 8, draw.randint(0, 10**6))
                for alternative in range(draw.randint(1, 3))
            ]
            for _ in range(draw.randint(1, 7))
        ]
        least = sum(min(alternative.memory_bytes for alternative in alternatives) for alternatives in layers)
        bound = draw.randint(least, 2 * least + 10)
        chosen = choose_alternatives(layers, bound)
        assert chosen.memory_bytes <= bound
        assert chosen.time_s == pytest.approx(brute_force(layers, bound))
        assert choose_alternatives(layers, 2 * bound).time_s <= chosen.time_s + 1e-12
