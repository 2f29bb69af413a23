"""Workers, centre and delays in plain float64 arithmetic, in one process: what every rule must compute."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class SimulatedWorkers:
    """P workers of SGD with momentum on gradient (worker, weights) → vector, and their centre."""

    weights: list[Vector]
    gradient: Callable[[int, Vector], Vector]
    learning_rate: float = 0.1
    momentum: float = 0.0
    outer: Callable[[Vector, Vector], Vector] = lambda centre, pseudo_gradient: centre - pseudo_gradient
    centre: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.centre = self.weights[0].copy()
        self.weights = [self.centre.copy() for _ in self.weights]
        self.velocities = [np.zeros_like(self.centre) for _ in self.weights]

    def train(self, steps: int, period: int, delay: int, pull: float | None) -> None:
        """Every `period` steps apply the differences of `delay` steps before."""
        taken: dict[int, list[Vector]] = {0: [each.copy() for each in self.weights]}
        for step in range(1, steps + 1):
            for worker, weights in enumerate(self.weights):
                velocity = self.momentum * self.velocities[worker] - self.learning_rate * self.gradient(worker, weights)
                self.velocities[worker] = velocity
                self.weights[worker] = weights + velocity
            taken[step] = [each.copy() for each in self.weights]
            if step % period == 0:
                self._pull(taken[step - delay], pull)
                taken[step] = [each.copy() for each in self.weights]

    def _pull(self, taken: list[Vector], pull: float | None) -> None:
        differences = [each - self.centre for each in taken]
        if pull is not None:
            self.weights = [w - pull * d for w, d in zip(self.weights, differences, strict=True)]
            self.centre = self.centre + pull * sum(differences)
            return
        self.centre = self.outer(self.centre, -sum(differences) / len(taken))
        self.weights = [w + self.centre - t for w, t in zip(self.weights, taken, strict=True)]
