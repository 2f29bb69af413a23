"""Delayed gradient updates: they are the updates of many workers, and the epochs are counted right."""

from collections.abc import Iterator

import numpy as np
import pytest

from dlplacer.data_parallel import delayed_updates, measure_epochs
from dlplacer.planning.hybrid.epochs import EpochsTable

SAMPLES, FEATURES, MINI_BATCH = 256, 5, 8


class Regression:
    """Least squares with noisy targets by SGD."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(7)
        self.inputs = random.normal(size=(SAMPLES, FEATURES))
        truth = random.normal(size=FEATURES)
        self.targets = self.inputs @ truth + 0.05 * random.normal(size=SAMPLES)
        self.weights = np.random.default_rng(seed).normal(size=FEATURES)
        self.gradient = np.zeros(FEATURES)

    def backward(self, rows: np.ndarray, factor: float) -> None:
        error = self.inputs[rows] @ self.weights - self.targets[rows]
        self.gradient += factor * self.inputs[rows].T @ error / len(rows)

    def update(self, rate: float) -> None:
        self.weights -= rate * self.gradient
        self.gradient[:] = 0

    def loss(self) -> float:
        return float(np.mean((self.inputs @ self.weights - self.targets) ** 2) / 2)


def train(workers: int, seed: int) -> Iterator[float]:
    model, random = Regression(seed), np.random.default_rng(seed)
    while True:
        order = random.permutation(SAMPLES).reshape(-1, MINI_BATCH)
        delayed_updates(order, workers, model.backward, lambda: model.update(0.05))
        yield model.loss()


@pytest.mark.parametrize("workers", [1, 2, 4, 5])
def test_a_delayed_update_is_the_update_of_the_large_batch(workers: int) -> None:
    delayed, large = Regression(0), Regression(0)
    order = np.arange(SAMPLES)
    updates = delayed_updates(order.reshape(-1, MINI_BATCH), workers, delayed.backward, lambda: delayed.update(0.1))
    assert updates == SAMPLES // MINI_BATCH // workers
    for rows in order[: updates * workers * MINI_BATCH].reshape(-1, workers * MINI_BATCH):
        large.backward(rows, 1.0)
        large.update(0.1)
    assert delayed.weights == pytest.approx(large.weights, abs=1e-12)


def test_epochs_grow_with_the_workers_where_the_rate_is_kept() -> None:
    measured = measure_epochs(train, [1, 4, 16], reached=lambda loss: loss < 0.01, max_epochs=200, seeds=(0, 1, 2))
    medians = [each.median for each in measured.measurements]
    assert None not in medians
    assert medians == sorted(medians)  # type: ignore[type-var]
    assert medians[2] > 4 * medians[0]  # type: ignore[operator]
    assert EpochsTable(measured.points()).epochs(4) == medians[1]
