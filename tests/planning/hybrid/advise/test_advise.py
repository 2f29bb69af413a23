"""The lemmas by linear scan, the choice of alternatives by brute force, and the memory formulas by hand."""

import random
from itertools import product

import pytest

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.planning.hybrid.advise.gpus import most_overhead_ratio
from dlplacer.planning.hybrid.advise.layer_alternatives import Alternative, LayerAlternatives, choose_alternatives
from dlplacer.planning.hybrid.advise.memory_footprint import (
    ConvNet,
    FeatureLayer,
    classifier_bytes,
    feature_map_bytes,
    feature_parameter_bytes,
    fft_bytes,
    gemm_bytes,
    memory_bound_bytes,
)
from dlplacer.planning.hybrid.advise.servers import fewest_channels, fewest_servers, transfer_s
from dlplacer.planning.hybrid.scaling_efficiency import SerialOverhead

ALEXNET = ConvNet(
    (224, 224, 3),
    (
        FeatureLayer(11, 4, 2, 96),
        FeatureLayer(3, 2),
        FeatureLayer(5, 1, 2, 256),
        FeatureLayer(3, 2),
        FeatureLayer(3, 1, 1, 384),
        FeatureLayer(3, 1, 1, 384),
        FeatureLayer(3, 1, 1, 256),
        FeatureLayer(3, 2),
    ),
    (4096, 4096, 1000),
)


def test_examples_of_lemma_31() -> None:
    assert most_overhead_ratio(0.8, 4) == pytest.approx(1 / 11)
    overhead = SerialOverhead(0.1)
    assert overhead.workers_for(3) == 4
    assert 3 * overhead.efficiency(3) == pytest.approx(2.54, abs=0.005)
    assert 4 * overhead.efficiency(4) == pytest.approx(3.14, abs=0.005)


def test_most_overhead_inverts_the_lemma() -> None:
    draw = random.Random(1)
    for _ in range(300):
        ratio, gpus = draw.uniform(0.001, 2), draw.randint(2, 64)
        assert most_overhead_ratio(SerialOverhead(ratio).efficiency(gpus), gpus) == pytest.approx(ratio)
    assert most_overhead_ratio(1.0, 8) == 0


def test_lemma_32_is_the_fewest_and_exact_at_the_boundary() -> None:
    # 2 · 0.25 GB · 8 workers = 4 GB in 2 s over 1 GB/s lanes: exactly 2; a byte more needs 3.
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


def test_choice_is_exact_to_the_byte() -> None:
    # The fast alternatives exceed the bound by one byte of ten billion: within the tolerance of the solver.
    layers = [[Alternative("fast", 1.0, 5 * 10**9), Alternative("slow", 2.0, 4 * 10**9)] for _ in range(2)]
    assert choose_alternatives(layers, 10**10).time_s == 2.0
    assert choose_alternatives(layers, 10**10 - 1).time_s == 3.0


def test_footprint_of_alexnet() -> None:
    assert ALEXNET.shapes[1] == (55, 55, 96)
    assert ALEXNET.shapes[-1] == (6, 6, 256)
    parameters = (feature_parameter_bytes(ALEXNET) + classifier_bytes(ALEXNET, 0)) // 12
    assert parameters == 62_378_344
    maps = sum(width * height * depth for width, height, depth in ALEXNET.shapes)
    assert feature_map_bytes(ALEXNET, 128) == 128 * 4 * maps
    left = memory_bound_bytes(ALEXNET, 128, 12 * 10**9)
    assert left == 12 * 10**9 - 128 * 4 * (maps + 9192) - 12 * parameters
    assert memory_bound_bytes(ALEXNET, 1 << 20, 12 * 10**9) < 0


def test_what_the_paper_prints() -> None:
    # One convolution of 2 filters of 3 × 3 on depth 5, then 7 and 11 neurons; printed: depth 2, no weights into 7.
    net = ConvNet((8, 8, 5), (FeatureLayer(3, 1, 1, 2),), (7, 11))
    assert feature_parameter_bytes(net, paper_literal=True) == 12 * (9 * 2 * 2 + 2)
    assert feature_parameter_bytes(net) == 12 * (9 * 5 * 2 + 2)
    assert classifier_bytes(net, paper_literal=True) == 4 * (18 + 3 * (77 + 1))
    assert classifier_bytes(net, 10) == 4 * (180 + 3 * (128 * 7 + 7 + 77 + 11))


def test_table_2() -> None:
    rows = [
        (224, 55, 3, 96, 11.6),
        (27, 27, 96, 256, 1.6),
        (13, 13, 256, 384, 2.3),
        (13, 13, 384, 384, 2.7),
        (13, 13, 384, 256, 2.3),
    ]
    for size, out_size, depth, out_depth, ratio in rows:
        found = fft_bytes(128, size, (depth, out_depth)) / gemm_bytes(128, (size, out_size), (depth, out_depth))
        assert found == pytest.approx(ratio, rel=0.04)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: most_overhead_ratio(0.2, 4), InputError, "no faster than one GPU"),
        (lambda: most_overhead_ratio(1.2, 4), InputError, "efficiency is 1.2"),
        (lambda: most_overhead_ratio(0.8, 0), InputError, "there are 0 GPUs"),
        (lambda: fewest_channels(1, 0, 1), InputError, "channel_bytes_per_s is 0"),
        (lambda: fewest_servers(1, 0, 1, 1), InputError, "there are 0 workers"),
        (lambda: choose_alternatives([[]], 5), InputError, "layer 0 has no alternatives"),
        (lambda: choose_alternatives([[Alternative("a", 1, 10)]], 5), InfeasibleError, "need 10 bytes; the bound is 5"),
        (lambda: ConvNet((5, 5, 1), (FeatureLayer(7),)).shapes, InputError, "feature layer 1: a filter of 7"),
        (lambda: ConvNet((6, 6, 1), (FeatureLayer(3, 2),), floor=False).shapes, InputError, "stride 2"),
    ],
)
def test_mistakes(make, error, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
