"""The codec of ternary gradients: unbiased, of the variance that theory gives, replayed by its key."""

import math

import numpy as np
import pytest
from data_parallel.ternary_codec import averaged, clipped, pack, shared_scaler, ternarize, unpack

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.gradient_codecs import CODECS

ZERO_SHARE, LENGTH_LOSS = 0.682, 0.01128
"""Of Gaussian elements clipped at 2.5 standard deviations; tests/examples holds them to the closed form."""


def gaussian(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_codec_does_what_the_closed_form_says() -> None:
    gradient = gaussian(400_000)
    held = clipped(gradient)
    assert 1 - np.linalg.norm(held) / np.linalg.norm(gradient) == pytest.approx(LENGTH_LOSS, rel=0.05)
    ternary = ternarize(gradient, key=(1, 2, 3, 4))
    assert set(np.unique(ternary.codes)) == {-1, 0, 1}
    assert np.mean(ternary.codes == 0) == pytest.approx(ZERO_SHARE, abs=0.003)
    assert np.mean((ternary.decoded() - held) ** 2) == pytest.approx(CODECS["ternary"].noise - 1, rel=0.02)
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


def test_a_gradient_without_elements_has_no_codes() -> None:
    nothing = np.zeros(0, dtype=np.float32)
    assert ternarize(nothing, (0, 0, 0, 0)).codes.size == 0
    assert shared_scaler([nothing]) == 0.0
    assert shared_scaler([]) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ternarize(np.array([1.0, np.inf], dtype=np.float32), (0,)), "infinite or undefined"),
        (lambda: ternarize(gaussian(10), (0,), scaler=0.01), "scaler is 0.01; it must be at least"),
        (lambda: averaged([]), "the average of no gradients"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
