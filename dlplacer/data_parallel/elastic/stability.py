"""Convergence of elastic averaging: the spectral radius of its linear recursion on a quadratic loss.

On a loss h ÷ 2 · x² one period is a linear map of the workers' weights and velocities and of the centre. If all workers
exchange together, this map splits into a map of their mean and the centre, and a map of differences between workers,
which sum to zero and do not move the centre. If workers exchange in turn, the map is a product of one map per worker.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlplacer.core.errors import InputError

Array = NDArray[np.float64]

_SCANNED = 160
_SMALLEST_ETA_H = 1e-4
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class ElasticRecursion:
    """The parameters that decide stability, except η·h; `momentum` and `nesterov` describe the workers' SGD.

    With `in_turn` workers exchange in turn, each after `period` steps of its own; this round robin also represents
    asynchronous orders.
    """

    pull: float
    workers: int
    momentum: float = 0.0
    period: int = 1
    delay: int = 1
    nesterov: bool = False
    in_turn: bool = False

    def __str__(self) -> str:
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        return f"pull {self.pull:g} with {self.workers} workers{momentum} and period {self.period}"


def spectral_radius(eta_h: float | Array, recursion: ElasticRecursion) -> Array:
    """The growth factor of errors per period, for each η·h; below 1, errors shrink."""
    shrink = np.atleast_1d(np.asarray(eta_h, dtype=np.float64))
    step = _local_step(shrink, recursion)
    taken = np.linalg.matrix_power(step, recursion.period - recursion.delay)[:, 0, :]
    local = np.linalg.matrix_power(step, recursion.period), taken
    if recursion.in_turn:
        return _radius(_one_turn(*local, recursion)) ** recursion.workers
    mean = _radius(_pulled(*local, recursion.pull, recursion.workers * recursion.pull))
    if recursion.workers == 1:
        return mean
    differences = _pulled(*local, recursion.pull, 0.0)[:, :2, :2]
    return np.maximum(mean, _radius(differences))


def require_stable(recursion: ElasticRecursion) -> None:
    """Raise InputError for a pull that diverges with every learning rate and curvature."""
    if recursion.pull and not _some_curvature_converges(recursion):
        raise InputError(
            f"elastic averaging with {recursion} diverges for every learning rate and loss; lower pull (below "
            f"2 ÷ (workers + 1) = {2 / (recursion.workers + 1):.4g} without momentum at period 1)"
        )


def _some_curvature_converges(recursion: ElasticRecursion) -> bool:
    # SGD alone diverges if η·h is at least 2 (1 + μ), and the pull towards a delayed centre does not help.
    top = 2 * (1 + recursion.momentum)
    scanned = np.concatenate([np.linspace(0.1, top, _SCANNED), np.geomspace(_SMALLEST_ETA_H, 0.1, 20)])
    # One value first, because it nearly always converges and the matrices of many workers in turn are large.
    return any(bool((spectral_radius(part, recursion) < 1 - _TOLERANCE).any()) for part in (scanned[:1], scanned))


def _local_step(shrink: Array, recursion: ElasticRecursion) -> Array:
    """[n, 2, 2]: the map of weight and velocity in a step of SGD (You, Buluç and Demmel 2017, eq. 3 and 4)."""
    momentum = recursion.momentum
    step = np.empty((len(shrink), 2, 2))
    step[:, 1, 0], step[:, 1, 1] = -shrink, momentum
    # Nesterov: the step is −η·g + μ·v with the new velocity.
    again = momentum if recursion.nesterov else 1.0
    step[:, 0, 0] = 1 - shrink * (again + recursion.nesterov)
    step[:, 0, 1] = momentum * again
    return step


def _pulled(whole: Array, taken: Array, worker: float, centre: float) -> Array:
    """[n, 3, 3]: the map of weight, velocity and centre in a period in which worker and centre move by these shares.

    `whole` is the map [n, 2, 2] of the worker's steps; `taken` [n, 2] gives the weight when differences were taken.
    """
    period = np.zeros((len(whole), 3, 3))
    period[:, :2, :2] = whole
    period[:, 0, :2] -= worker * taken
    period[:, 0, 2] = worker
    period[:, 2, :2] = centre * taken
    period[:, 2, 2] = 1 - centre
    return period


def _one_turn(whole: Array, taken: Array, recursion: ElasticRecursion) -> Array:
    """The map of the first worker's turn and a renumbering of all workers; its P-th power is a round."""
    workers = recursion.workers
    turn = np.tile(np.eye(2 * workers + 1), (len(whole), 1, 1))
    own = np.ix_(range(len(whole)), (0, 1, 2 * workers), (0, 1, 2 * workers))
    turn[own] = _pulled(whole, taken, recursion.pull, recursion.pull)
    order = [*range(2, 2 * workers), 0, 1, 2 * workers]
    return turn[:, order, :]


def _radius(matrices: Array) -> Array:
    found: Array = np.abs(np.linalg.eigvals(matrices)).max(axis=-1)
    return found
