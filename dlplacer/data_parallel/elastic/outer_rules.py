"""Update rules for workers and centre: elastic averaging, local SGD and DiLoCo."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.elastic.packed_weights import PackedWeights

OptimizerFactory = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class OuterRule:
    """An update rule for workers and centre.

    Let d_i = W_i − C be the differences of P workers from the centre, taken `delay` steps earlier. Elastic averaging
    moves a worker by −a · d_i and the centre by a · Σ d_i (You, Buluç and Demmel 2017, eq. 1 and 2, a = η·ρ). The other
    rules move the centre to the workers' mean, or by an outer optimizer with gradient −Σ d_i ÷ P, and workers to the
    centre. `easgd`, `local_sgd` and `diloco` describe the fields. If `pull` is None, workers take the centre's values;
    if `outer` is None too, the centre takes the workers' mean.
    """

    name: str
    pull: float | None = None
    outer: OptimizerFactory | None = None
    delay: int = 0
    start: int = 0
    rho: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("pull", self.pull), ("rho", self.rho)):
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{self.name}: {name} is {value:g}; it must be finite and at least 0")
        if self.delay < 0 or self.start < 0:
            raise InputError(f"{self.name}: delay {self.delay} and start {self.start}; they must be at least 0")
        if self.delay and self.start:
            raise InputError(
                f"{self.name}: delay {self.delay} with start {self.start}; a synchronisation after every step "
                "cannot be delayed: use one of the two"
            )

    def pull_at(self, learning_rate: float) -> float | None:
        """The pull a: η·ρ if the rule has a ρ, else `pull`, which may be None."""
        return self.pull if self.rho is None else self.rho * learning_rate

    def is_due(self, step: int, period: int) -> bool:
        """True if workers and centre synchronise after this step."""
        return step > 0 and (step <= self.start or (step - self.start) % period == 0)


def easgd(pull: float = 0.1, delay: int = 1, rho: float | None = None) -> OuterRule:
    """Elastic averaging (Zhang, Choromanska and LeCun 2015): workers and centre pull each other by a share of their
    difference.

    Parameters
    ----------
    pull
        a = η·ρ, the share of its difference from the centre by which a worker moves. Per synchronisation the centre
        covers P · a of its distance to the workers' mean; `OuterOptimizer` refuses pulls that always diverge.
    delay
        1 is the rule of You et al.: gradients and differences belong to the same weights (eq. 1 and 2), so the exchange
        can run during the forward and backward pass.
    rho
        If not None, the pull is η·ρ, with the inner optimizer's current learning rate η, instead of `pull`.
    """
    return OuterRule("easgd", pull=pull, delay=delay, rho=rho)


def local_sgd(start: int = 0, delay: int = 0) -> OuterRule:
    """Local SGD (Stich 2019): workers take their mean.

    Parameters
    ----------
    start
        Number of initial steps with averaging after each (post-local SGD, Lin et al. 2020), which is data parallelism
        for SGD with or without momentum.
    delay
        Number of steps from taking to applying the mean; a worker keeps its updates in between (Wang et al. 2020,
        overlap local SGD). The exchange overlaps with these steps, and the result differs.
    """
    return OuterRule("local_sgd", start=start, delay=delay)


def diloco(outer_optimizer: OptimizerFactory | None = None, delay: int = 0) -> OuterRule:
    """DiLoCo (Douillard et al. 2023): an outer optimizer moves the centre towards the workers' mean.

    Parameters
    ----------
    outer_optimizer
        Parameters → an optimizer of them, such as ``functools.partial(torch.optim.SGD, lr=0.7)``. None means SGD
        with Nesterov momentum 0.9 and learning rate 0.7, as in that paper.
    delay
        See `local_sgd`.
    """
    outer = outer_optimizer or partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    return OuterRule("diloco", outer=outer, delay=delay)


class Centre:
    """The centre's weights and float buffers as a vector, and its optimizer if it has one.

    The centre is the same on every rank, because all ranks move it by the same sum.
    """

    def __init__(self, rule: OuterRule, packed: PackedWeights) -> None:
        self.rule = rule
        self.packed = packed
        self.vector = packed.empty(packed.float_count).zero_()
        self.optimizer: torch.optim.Optimizer | None = None
        if rule.outer is not None:
            views = [nn.Parameter(self.vector[part.start : part.stop]) for part in packed.parameters]
            for view, part in zip(views, packed.parameters, strict=True):
                view.data = view.data.view(part.tensor.shape)
            self.optimizer = rule.outer(views)
            self._views = views

    def move(self, total: Tensor, own: Tensor | None, workers: int, pull: float | None) -> None:
        """Move the centre, and this worker's weights and float buffers with it.

        `total`: The sum over all workers of their differences from the centre's current values. `own`: The differences
        of this worker, which are overwritten; None: the worker takes the centre's values.
        """
        packed, weights = self.packed, slice(self.packed.parameter_count)
        buffers = slice(self.packed.parameter_count, self.packed.float_count)
        mean = total[buffers] / workers
        if own is not None:
            torch.sub(mean, own[buffers], out=own[buffers])
            packed.add(own, packed.float_buffers)
        self.vector[buffers] += mean
        if pull is not None:
            assert own is not None
            packed.add(own, packed.parameters, -pull)
            self.vector[weights].add_(total[weights], alpha=pull)
        elif own is None:
            self._outer_step(total[weights], workers)
            packed.assign(self.vector)
        else:
            # The step from the worker's old values to the centre's new ones: (new − old) − own.
            own[weights] += self.vector[weights]
            self._outer_step(total[weights], workers)
            packed.add(torch.sub(self.vector[weights], own[weights], out=own[weights]), packed.parameters)

    def state(self) -> dict[str, Any]:
        """The centre's values by name, and its optimizer's state."""
        return {
            "values": self.packed.named(self.vector),
            "optimizer": self.optimizer and self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a state."""
        self.packed.from_named(state["values"], self.vector)
        if self.optimizer is not None and state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    def _outer_step(self, total: Tensor, workers: int) -> None:
        if self.optimizer is None:
            self.vector[: self.packed.parameter_count].add_(total, alpha=1 / workers)
            return
        # The pseudo-gradient points from the workers' mean to the centre, so a descent moves the centre to the mean.
        gradient = total.mul_(-1 / workers)
        for view, part in zip(self._views, self.packed.parameters, strict=True):
            view.grad = gradient[part.start : part.stop].view(view.shape)
        self.optimizer.step()
        self.optimizer.zero_grad()
