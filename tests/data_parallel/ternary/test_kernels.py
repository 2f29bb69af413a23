"""The codec: what the formulas say, the same bits compiled and in plain PyTorch, and streams that are random."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.data_parallel.ternary import compiled_kernels, torch_kernels
from dlplacer.data_parallel.ternary.bucket import BucketLayout, limits_and_scalers, planes_shape, stream_key
from dlplacer.machines.costs.gradient_codecs import sum_bits

BOTH = [compiled_kernels, torch_kernels]
each_kernel = pytest.mark.parametrize("kernels", BOTH, ids=lambda kernels: kernels.NAME)


def gaussian(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count).astype(np.float32))


def layout_of(*sizes: int) -> BucketLayout:
    return BucketLayout.of([(f"p{index}", size) for index, size in enumerate(sizes)], lambda *_: True)


def drawn(
    kernels: ModuleType, flat: torch.Tensor, scaler: float | None = None, clip: float = 2.5, **key: Any
) -> tuple[torch.Tensor, float]:
    """The codes of one tensor, and the scaler that they multiply."""
    limits, scalers = limits_and_scalers([flat], clip)
    used = scalers[0] if scaler is None else torch.tensor(scaler)
    codes = torch.full(flat.shape, 7, dtype=torch.int8)
    kernels.draw(flat, limits[0], used, *stream_key(**{"seed": 0, "step": 0, "name": "", "rank": 0, **key}), codes)
    return codes, float(used)


def received(kernels: ModuleType, flat: torch.Tensor, **options: Any) -> np.ndarray:
    codes, scaler = drawn(kernels, flat, **options)
    return codes.double().numpy() * scaler


def packed(kernels: ModuleType, numbers: torch.Tensor, offset: int, bits: int, blocks: int) -> torch.Tensor:
    planes = torch.zeros(planes_shape(blocks, bits), dtype=torch.int32)
    padded = torch.nn.functional.pad(numbers, (0, blocks * torch_kernels.BLOCK - len(numbers)))
    kernels.pack(padded, offset, planes)
    return planes


def clipped(gradient: np.ndarray, clip: float = 2.5) -> np.ndarray:
    """Elements held within ±clip standard deviations (eq. 21); the gradient itself where that would destroy it."""
    deviation = float(gradient.std()) if gradient.size else 0.0
    if deviation == 0 or abs(float(gradient.mean())) > deviation:
        return gradient
    limit = np.float32(clip * deviation)
    return np.clip(gradient, -limit, limit)


@each_kernel
@given(codes=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=130), exponent=st.integers(-126, 120))
def test_elements_of_magnitude_0_and_s_are_certain(kernels: ModuleType, codes: list[int], exponent: int) -> None:
    flat = torch.tensor(codes, dtype=torch.float32) * 2.0**exponent
    assert np.array_equal(received(kernels, flat, clip=1e9), flat.double().numpy())


@given(count=st.integers(1, 5000), seed=st.integers(0, 2**31), scale=st.sampled_from([1e-42, 1e-3, 1.0, 1e20, 1e37]))
def test_compiled_and_plain_kernels_draw_the_same_codes(count: int, seed: int, scale: float) -> None:
    flat = gaussian(count, seed) * scale
    assert torch.equal(*(drawn(kernels, flat, seed=seed)[0] for kernels in BOTH))


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    ranks=st.sampled_from([1, 2, 3, 70]),
    seed=st.integers(0, 2**31),
)
def test_what_is_packed_comes_back_times_its_factors(sizes: list[int], ranks: int, seed: int) -> None:
    layout, random = layout_of(*sizes), np.random.default_rng(seed)
    for offset, bits in ((1, 2), (ranks, sum_bits(ranks))):
        numbers = torch.from_numpy(random.integers(-offset, offset + 1, (ranks, layout.coded_numel)))
        # Powers of two: sums are exact in any order.
        factors = torch.from_numpy(2.0 ** random.integers(-3, 4, (ranks, len(sizes)))).float()
        rows = [
            packed(kernels, row.float() if offset > 1 else row.to(torch.int8), offset, bits, layout.blocks)
            for kernels in BOTH
            for row in numbers
        ]
        plain, compiled = torch.stack(rows[ranks:]), torch.stack(rows[:ranks])
        assert torch.equal(plain, compiled)
        expected = (numbers * factors.repeat_interleave(torch.tensor(sizes), dim=1)).sum(0).float() * 0.25
        for kernels in BOTH:
            mean = torch.full((layout.coded_numel,), 7.0)
            kernels.decode(compiled, offset, layout.table, factors, 0.25, mean)
            assert torch.equal(mean, expected)


@each_kernel
def test_decoding_leaves_tensors_in_full_precision_alone(kernels: ModuleType) -> None:
    layout = BucketLayout.of([("a", 3), ("b", 2), ("c", 4)], lambda name, _: name != "b")
    planes = packed(kernels, torch.tensor([1, 1, 1, -1, -1, -1, -1], dtype=torch.int8), 1, 2, 1)
    out = torch.full((9,), 7.0)
    kernels.decode(planes.unsqueeze(0), 1, layout.table, torch.tensor([[2.0, 3.0]]), 1.0, out)
    assert out.tolist() == [2, 2, 2, 7, 7, -3, -3, -3, -3]


@pytest.mark.parametrize("count", [1, 17, 5000])
@pytest.mark.parametrize("shift", [0.0, 0.9, 1.1, 50.0])
def test_scaler_is_that_of_the_formulas(count: int, shift: float) -> None:
    flat = gaussian(count) + shift
    _, scalers = limits_and_scalers([flat], 1.5)
    assert float(scalers[0]) == pytest.approx(np.abs(clipped(flat.numpy(), 1.5)).max(), rel=1e-5)


@pytest.mark.parametrize("shared", [None, 9.0])
def test_decoded_gradients_are_unbiased_with_the_variance_of_the_formula(shared: float | None) -> None:
    flat, draws = gaussian(300, seed=5), 3000
    held = clipped(flat.numpy()).astype(np.float64)
    samples = np.stack([received(BOTH[0], flat, scaler=shared, step=step, seed=3) for step in range(draws)])
    scaler = shared or np.abs(held).max()
    variance = np.maximum(scaler * np.abs(held) - held**2, 0)
    deviations = (samples.mean(0) - held) / np.sqrt(variance / draws + 1e-12)
    assert np.abs(deviations).max() < 4.5
    # Of 300 standard normal numbers; a bias of a tenth of a deviation would shift their mean by 0.1.
    assert abs(deviations.mean()) < 4 / math.sqrt(300)
    assert 0.75 < deviations.var() < 1.3
    assert samples.var(0).mean() == pytest.approx(variance.mean(), rel=0.02)


def test_streams_of_other_seeds_steps_names_and_ranks_are_independent() -> None:
    count = 200_000
    flat = torch.full((count,), 0.25)
    keys = [{"seed": seed, "step": step, "rank": rank} for seed in (0, 1) for step in (0, 1) for rank in (0, 1)]
    codes = np.stack([received(BOTH[0], flat, scaler=1.0, **key) for key in keys])
    # Of a share of 1/4, and of correlations of independent numbers, five deviations.
    assert np.abs(codes.mean(1) - 0.25).max() < 5 * math.sqrt(0.1875 / count)
    assert np.abs(np.corrcoef(codes) - np.eye(len(keys))).max() < 5 / math.sqrt(count)
    # No stream is another one shifted, nor do neighbours in a stream depend on each other.
    spectra = np.fft.rfft(codes - codes.mean(1, keepdims=True))
    for one in range(3):
        for other in range(3):
            products = np.fft.irfft(spectra[one] * np.conj(spectra[other]), n=count) / (0.1875 * count)
            products[0] = 0
            assert np.abs(products).max() < 6 / math.sqrt(count)
    assert len({stream_key(0, 0, name, 0) for name in ("weight", "bias", "b", "weight ")}) == 4


@each_kernel
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_tensor_undefined_and_no_other(kernels: ModuleType, value: float) -> None:
    tensors = [gaussian(100), gaussian(200), gaussian(50)]
    tensors[1][50] = value
    limits, scalers = limits_and_scalers(tensors, 2.5)
    codes = torch.empty(200, dtype=torch.int8)
    kernels.draw(tensors[1], limits[1], scalers[1], 1, 2, codes)
    layout, out = layout_of(200), torch.zeros(200)
    kernels.decode(packed(kernels, codes, 1, 2, 1).unsqueeze(0), 1, layout.table, scalers[1].view(1, 1), 1.0, out)
    assert not torch.isfinite(out).any()
    assert torch.isfinite(scalers[[0, 2]]).all()
