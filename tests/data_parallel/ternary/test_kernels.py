"""The compiled codec: what the formulas say, the same bits as plain PyTorch, and streams that are random."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_parallel.ternary.codes import added, decoded, encoded, layout_of, round_trip
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.data_parallel.ternary.kernels import TernaryKernels, kernels_for
from dlplacer.data_parallel.ternary.kernels.random_keys import stream_key
from dlplacer.data_parallel.ternary.kernels.torch_kernels import TorchKernels

BOTH = [kernels_for("cpu"), TorchKernels()]


def gaussian(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count).astype(np.float32))


def clipped(gradient: np.ndarray, clip: float = 2.5) -> np.ndarray:
    """Elements held within ±clip standard deviations (eq. 21); the gradient itself where that would destroy it."""
    deviation = float(gradient.std()) if gradient.size else 0.0
    if deviation == 0 or abs(float(gradient.mean())) > deviation:
        return gradient
    limit = np.float32(clip * deviation)
    return np.clip(gradient, -limit, limit)


@pytest.mark.parametrize("kernels", BOTH, ids=lambda kernels: kernels.name)
@given(codes=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=130), exponent=st.integers(-126, 120))
def test_codes_come_back_for_every_length_and_magnitude(
    kernels: TernaryKernels, codes: list[int], exponent: int
) -> None:
    """Elements of magnitude 0 and s are certain, whatever is drawn: the codec is then the identity."""
    flat = torch.tensor(codes, dtype=torch.float32) * 2.0**exponent
    assert np.array_equal(round_trip(kernels, flat, clip=1e9), flat.numpy())


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-42, 1e-30, 1e-3, 1.0, 1e20, 1e37]),
)
def test_compiled_and_plain_kernels_give_the_same_bits(sizes: list[int], seed: int, scale: float) -> None:
    layout, flat = layout_of(*sizes), gaussian(sum(sizes), seed) * scale
    (words, scalers), (plain_words, plain_scalers) = (encoded(one, flat, layout, seed=seed) for one in BOTH)
    # Sums in another order: the deviation may differ in its last bit.
    assert torch.allclose(scalers, plain_scalers, rtol=1e-6, atol=3e-45)
    plain_words, _ = encoded(BOTH[1], flat, layout, seed=seed, scalers=scalers)
    words, _ = encoded(BOTH[0], flat, layout, seed=seed, scalers=scalers)
    assert torch.equal(words, plain_words)
    rows = torch.stack([words, encoded(BOTH[0], -flat, layout, rank=1, scalers=scalers)[0]])
    scales = torch.stack([scalers, scalers / 3])
    assert torch.equal(*(decoded(one, rows, scales, layout) for one in BOTH))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 70])
def test_sums_are_the_sums_of_codes(ranks: int) -> None:
    layout = layout_of(1, 700, 9000, 33)
    shared = torch.tensor([0.5, 4.0, 3.0, 7.0])
    flats = [gaussian(layout.coded_numel, seed) for seed in range(ranks)]
    rows = torch.stack(
        [encoded(BOTH[0], flat, layout, rank=rank, scalers=shared)[0] for rank, flat in enumerate(flats)]
    )
    codes = torch.stack([decoded(BOTH[0], row, torch.ones(4), layout) for row in rows]).sum(0)
    lengths = torch.tensor([span.numel for span in layout.coded])
    expected = shared.repeat_interleave(lengths) * codes * np.float32(1 / ranks)
    for adding in BOTH:
        planes = added(adding, rows, ranks)
        for spreading in BOTH:
            mean = torch.full((layout.coded_numel,), 7.0)
            spreading.spread(planes, ranks, shared, layout.table, mean)
            assert torch.equal(mean, expected)


@pytest.mark.parametrize("kernels", BOTH, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("count", [1, 17, 5000])
@pytest.mark.parametrize("shift", [0.0, 0.9, 1.1, 50.0])
def test_limit_and_scaler_are_those_of_the_formulas(kernels: TernaryKernels, count: int, shift: float) -> None:
    flat = gaussian(count) + shift
    _, scalers = encoded(kernels, flat, layout_of(count), clip=1.5)
    assert float(scalers[0]) == pytest.approx(np.abs(clipped(flat.numpy(), 1.5)).max(), rel=1e-6)


def test_decoded_gradients_are_unbiased_with_the_variance_of_the_formula() -> None:
    flat, draws = gaussian(300, seed=5), 3000
    held = clipped(flat.numpy()).astype(np.float64)
    samples = np.stack([round_trip(BOTH[0], flat, step=step, seed=3) for step in range(draws)]).astype(np.float64)
    scaler = np.abs(held).max()
    variance = np.maximum(scaler * np.abs(held) - held**2, 0)
    deviations = (samples.mean(0) - held) / np.sqrt(variance / draws + 1e-12)
    assert np.abs(deviations).max() < 4.5
    # Of 300 standard normal numbers; a bias of a tenth of a deviation would shift their mean by 0.1.
    assert abs(deviations.mean()) < 4 / math.sqrt(300)
    assert 0.75 < deviations.var() < 1.3
    assert samples.var(0).mean() == pytest.approx(variance.mean(), rel=0.02)


def test_a_shared_scaler_clips_and_stays_unbiased() -> None:
    flat, draws = gaussian(300, seed=6), 3000
    held, shared = clipped(flat.numpy(), 1.0).astype(np.float64), torch.tensor([9.0])
    samples = [round_trip(BOTH[0], flat, step=step, clip=1.0, scalers=shared) for step in range(draws)]
    deviation = np.sqrt((9.0 * np.abs(held) - held**2) / draws)
    assert np.abs((np.mean(samples, axis=0, dtype=np.float64) - held) / deviation).max() < 4.5


def test_streams_of_other_seeds_steps_names_and_ranks_are_independent() -> None:
    count = 200_000
    flat, layout, scaler = torch.full((count,), 0.25), layout_of(count), torch.ones(1)
    keys = [{"seed": seed, "step": step, "rank": rank} for seed in (0, 1) for step in (0, 1) for rank in (0, 1)]
    codes = np.stack([decoded(BOTH[0], *encoded(BOTH[0], flat, layout, scalers=scaler, **key), layout) for key in keys])
    again = decoded(BOTH[0], *encoded(BOTH[0], flat, layout, scalers=scaler, **keys[0]), layout).numpy()
    assert np.array_equal(codes[0], again)
    # Of a share of 1/4, and of correlations of independent numbers, five deviations.
    assert np.abs(codes.mean(1) - 0.25).max() < 5 * math.sqrt(0.1875 / count)
    assert np.abs(np.corrcoef(codes) - np.eye(len(keys))).max() < 5 / math.sqrt(count)
    # No stream is another one shifted, nor do neighbours in a stream depend on each other.
    centred = codes - codes.mean(1, keepdims=True)
    spectra = np.fft.rfft(centred)
    for one in range(3):
        for other in range(3):
            products = np.fft.irfft(spectra[one] * np.conj(spectra[other]), n=count) / (0.1875 * count)
            products[0] = 0
            assert np.abs(products).max() < 6 / math.sqrt(count)
    assert len({stream_key(0, 0, name, 0) for name in ("weight", "bias", "b", "weight ")}) == 4


@pytest.mark.parametrize("kernels", BOTH, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_tensor_undefined_and_no_other(kernels: TernaryKernels, value: float) -> None:
    layout, flat = layout_of(100, 200, 50), gaussian(350)
    flat[150] = value
    found = decoded(kernels, *encoded(kernels, flat, layout), layout)
    assert not torch.isfinite(found[100:300]).any()
    assert torch.isfinite(found[:100]).all()
    assert torch.isfinite(found[300:]).all()


INTERPRETED = """\
import torch
from data_parallel.ternary.codes import decoded, encoded, layout_of
from dlplacer.data_parallel.ternary.kernels.torch_kernels import TorchKernels
from dlplacer.data_parallel.ternary.kernels.triton_kernels import TritonKernels

torch.manual_seed(0)
layout = layout_of(1, 15, 16, 17, 4097, 9000)
flat = torch.randn(layout.coded_numel)
flat[20:33] *= 1e-38
words, scalers = encoded(TorchKernels(), flat, layout)
others, _ = encoded(TritonKernels(), flat, layout)
assert torch.equal(words, others)
rows, scales = torch.stack([words, words.flip(0), words]), torch.stack([scalers, scalers / 3, scalers * 5])
assert torch.equal(decoded(TorchKernels(), rows, scales, layout), decoded(TritonKernels(), rows, scales, layout))
"""


def test_triton_kernels_give_the_same_bits_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton's wheels come with PyTorch for CUDA")
    tests = Path(__file__).parents[2]
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{tests.parent}:{tests}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
