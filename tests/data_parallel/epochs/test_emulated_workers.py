"""Emulated workers do what real ones would: large batches, codecs, local steps."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

from dlplacer.data_parallel import EmulatedWorkers
from dlplacer.data_parallel.epochs.emulated_workers import codec_noise

SAMPLES, MINI_BATCH = 64, 4


def data():
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 6, generator=draw)
    return inputs, (inputs @ torch.randn(6, 3, generator=draw)).argmax(1)


def make(seed: int, size: int = MINI_BATCH, rate: float = 0.05):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, labels = data()
    loader = list(zip(inputs.split(size), labels.split(size), strict=True))
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), loader


def loss(model: nn.Module, batch) -> torch.Tensor:
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels)


def losses(epochs: int, workers: int, **options: object) -> list[float]:
    return list(islice(EmulatedWorkers(make, loss, min_numel=16)(workers, 0, **options), epochs))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_are_one_large_batch(workers: int) -> None:
    model, optimizer, loader = make(0, MINI_BATCH * workers, 0.05 * workers)
    wanted = []
    for _ in range(3):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            one = loss(model, batch)
            one.backward()
            optimizer.step()
            total += float(one.detach())
        wanted.append(total / len(loader))
    assert losses(3, workers) == pytest.approx(wanted, rel=1e-5)


def test_ternary_noise_is_unbiased_and_has_three_levels() -> None:
    tensor = torch.randn(500, generator=torch.Generator().manual_seed(1))
    noise = codec_noise("ternary", seed=3, min_numel=1)
    draws = torch.stack([noise(tensor) for _ in range(2000)])
    limit = 2.5 * tensor.std(unbiased=False)
    clipped = tensor.clamp(-limit, limit)
    scaler = clipped.abs().max()
    assert {round(level, 4) for level in (draws[0] / scaler).unique().tolist()} == {-1.0, 0.0, 1.0}
    # The variance of a code is s |g| - g^2; five standard errors over 2000 draws.
    bound = 5 * ((scaler * clipped.abs() - clipped**2).clamp(min=0) / 2000).sqrt() + 1e-3
    assert bool(((draws.mean(0) - clipped).abs() <= bound).all())
    assert torch.equal(noise(torch.zeros(30)), torch.zeros(30))
    assert not noise(torch.tensor([1.0, float("nan")])).isfinite().all()
    # As with the hook, small tensors travel as they are.
    assert torch.equal(codec_noise("ternary", seed=3, min_numel=501)(tensor), tensor)
