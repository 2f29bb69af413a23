"""Memory of a convolutional network (eq. 1 to 5) by hand, as printed and as corrected."""

import pytest

pytest.importorskip("paper_models", reason="the examples are in the checkout only")
from paper_models.conv_algorithms import alternatives, best_step
from paper_models.conv_net_memory import (
    ConvNet,
    FeatureLayer,
    classifier_bytes,
    feature_map_bytes,
    feature_parameter_bytes,
    fft_bytes,
    gemm_bytes,
    memory_bound_bytes,
)

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


def test_algorithms_of_a_convolution_by_hand() -> None:
    # 4 × 4 maps of depths 2 and 6, 3 × 3 filters, batch 10: products 2 · 10 · 16 · 9 · 12 = 34,560 FLOP.
    net = ConvNet((4, 4, 2), (FeatureLayer(3, 1, 1, 6),))
    ((gemm, fft, winograd),) = alternatives(net, 10, 1e6, ("GEMM", "FFT", "Winograd"))
    assert gemm.time_s == pytest.approx(3 * 34_560 / 0.6e6)
    # 92 planes of 2.5 · 16 · log2 16 = 160 FLOP, and 8 · 10 · 12 · 4 · 3 for the products.
    assert fft.time_s == pytest.approx(3 * (92 * 160 + 11_520) / 0.3e6)
    assert fft.workspace_bytes == 92 * 4 * 3 * 2 * 4
    # 4 tiles of 16 products for each pair of maps, in place of 4 · 36.
    assert winograd.time_s == pytest.approx(3 * 34_560 / 2.25 / 0.45e6)
    assert winograd.workspace_bytes == 4 * (4 * 16 * 10 * 8 + 16 * 12)


def test_more_memory_never_slows_a_step_and_less_forces_gemm() -> None:
    machine = [best_step(ALEXNET, 1024, gigabytes * 10**9, 2.8e12) for gigabytes in (3, 6, 8, 12, 40)]
    assert machine[0] is None
    times = [step.time_s for step in machine if step is not None]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    assert best_step(ALEXNET, 1024, 12 * 10**9, 2.8e12, ("GEMM",)).algorithms == ("GEMM",) * 5
