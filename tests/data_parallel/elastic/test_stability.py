"""The spectral radius against the closed form, against the workers' maps written out, and against training."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dlplacer.data_parallel import OuterOptimizer, easgd
from dlplacer.data_parallel.elastic.stability import ElasticRecursion, spectral_radius


def written_out(eta_h: float, recursion: ElasticRecursion, state: np.ndarray) -> np.ndarray:
    """Weights, velocities and centre after one period, step by step."""
    workers = recursion.workers
    weights, velocities, centre = state[:workers].copy(), state[workers:-1].copy(), state[-1]

    def step(worker: int) -> None:
        velocities[worker] = recursion.momentum * velocities[worker] - eta_h * weights[worker]
        nesterov = recursion.momentum * velocities[worker] - eta_h * weights[worker]
        weights[worker] += nesterov if recursion.nesterov else velocities[worker]

    def steps(worker: int) -> float:
        taken = weights[worker]
        for count in range(1, recursion.period + 1):
            step(worker)
            if count == recursion.period - recursion.delay:
                taken = weights[worker]
        return taken

    if recursion.in_turn:
        for worker in range(workers):
            difference = steps(worker) - centre
            weights[worker] -= recursion.pull * difference
            centre += recursion.pull * difference
    else:
        differences = np.array([steps(worker) for worker in range(workers)]) - centre
        if not recursion.delay:
            differences = weights - centre
        weights -= recursion.pull * differences
        centre += recursion.pull * differences.sum()
    return np.array([*weights, *velocities, centre])


def drawn(draw: random.Random, in_turn: bool) -> tuple[float, ElasticRecursion]:
    period = draw.randint(1, 5)
    momentum = draw.choice((0.0, 0.5, 0.9))
    delay = 1 if in_turn else draw.randint(0, period)
    nesterov = momentum > 0 and draw.random() < 0.3
    pull, workers = draw.uniform(0.01, 1.2), draw.randint(1, 6)
    return draw.uniform(0.01, 4), ElasticRecursion(pull, workers, momentum, period, delay, nesterov, in_turn)


@pytest.mark.parametrize("in_turn", [False, True])
def test_radius_is_that_of_the_map_of_all_workers(in_turn: bool) -> None:
    draw = random.Random(3)
    for _ in range(150):
        eta_h, recursion = drawn(draw, in_turn)
        size = 2 * recursion.workers + 1
        matrix = np.stack([written_out(eta_h, recursion, unit) for unit in np.eye(size)], axis=1)
        radius = np.abs(np.linalg.eigvals(matrix)).max()
        # Eigenvalues of defective matrices are known to the square root of the rounding error, or less.
        assert spectral_radius(eta_h, recursion)[0] == pytest.approx(radius, rel=1e-3, abs=1e-3), (eta_h, recursion)


@pytest.mark.parametrize(("shrink", "momentum"), [(0.5, 0.0), (1.5, 0.0), (2.2, 0.0), (2.2, 0.5), (3.5, 0.5)])
def test_training_does_what_the_radius_says(shrink: float, momentum: float) -> None:
    recursion = ElasticRecursion(0.3, 1, momentum, period=2)
    weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
    model = nn.ParameterList([weight])
    inner = torch.optim.SGD(model.parameters(), lr=shrink, momentum=momentum)
    outer = OuterOptimizer(model, inner, easgd(0.3), sync_every=2)
    with outer:
        for _ in range(600):
            inner.zero_grad()
            (weight**2 / 2).sum().backward()
            inner.step()
    radius = spectral_radius(shrink, recursion)[0]
    assert abs(radius - 1) > 0.02
    assert (abs(weight.item()) < 1e-2) == (radius < 1)
    assert spectral_radius(shrink, replace(recursion, pull=0.31))[0] != radius
