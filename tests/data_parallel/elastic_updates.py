"""The updates of elastic averaging on flat weight vectors (eq. 1–6), in numpy: the oracle of every variant.

Workers pull towards the centre with strength a = η·ρ, and the centre is pulled towards them; every term uses the values
from before the update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, Vector], Vector]


@dataclass(frozen=True)
class Elastic:
    """Learning rate η, elastic strength ρ and momentum μ."""

    learning_rate: float
    strength: float
    momentum: float = 0.0

    @property
    def pull(self) -> float:
        """a = η·ρ."""
        return self.learning_rate * self.strength


@dataclass(frozen=True)
class ElasticState:
    """Weights and velocities of P workers, [P, n], and the centre, [n]."""

    workers: Vector
    velocities: Vector
    centre: Vector

    @classmethod
    def equal(cls, weights: Vector, workers: int) -> "ElasticState":
        """All workers and the centre at the same weights."""
        stacked = np.tile(weights, (workers, 1))
        return cls(stacked, np.zeros_like(stacked), weights.copy())


def worker_event(rule: Elastic, state: ElasticState, worker: int, gradient: Vector) -> ElasticState:
    """One worker's exchange with the centre: eq. 1 (5 and 6 with momentum) for it, eq. 2 with its term alone.

    Round-robin EASGD is this with workers in turn; asynchronous EASGD is this in order of arrival.
    """
    difference = state.workers[worker] - state.centre
    velocity = rule.momentum * state.velocities[worker] - rule.learning_rate * gradient
    workers, velocities = state.workers.copy(), state.velocities.copy()
    velocities[worker] = velocity
    workers[worker] = state.workers[worker] + velocity - rule.pull * difference
    return ElasticState(workers, velocities, state.centre + rule.pull * difference)


def synchronous_step(rule: Elastic, state: ElasticState, gradients: Vector) -> ElasticState:
    """All workers at once, from gradients [P, n], each at its worker's weights (Sync EASGD 1, 2 and 3)."""
    difference = state.workers - state.centre
    velocities = rule.momentum * state.velocities - rule.learning_rate * gradients
    workers = state.workers + velocities - rule.pull * difference
    return ElasticState(workers, velocities, state.centre + rule.pull * difference.sum(axis=0))


def replay_events(rule: Elastic, state: ElasticState, events: Sequence[int], gradient: Gradient) -> ElasticState:
    """The state after a recorded order of worker events; `gradient` is that of a worker at its weights."""
    for worker in events:
        state = worker_event(rule, state, worker, gradient(worker, state.workers[worker]))
    return state


def hogwild_replay(
    rule: Elastic, state: ElasticState, events: Sequence[tuple[str, int]], gradient: Gradient
) -> ElasticState:
    """Without a lock: ``("read", w)`` copies the centre, ``("write", w)`` exchanges with that copy.

    With every read followed by its own write it equals `replay_events`.
    """
    seen: dict[int, Vector] = {}
    for kind, worker in events:
        if kind == "read":
            seen[worker] = state.centre.copy()
            continue
        centre = seen.pop(worker)
        pulled = rule.pull * (state.workers[worker] - centre)
        moved = worker_event(rule, replace(state, centre=centre), worker, gradient(worker, state.workers[worker]))
        state = replace(moved, centre=state.centre + pulled)
    return state
