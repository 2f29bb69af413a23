"""The centre of synchronous training: the same on every rank, moved by the sum of the workers' differences to it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.elastic.outer_rules import OuterRule
from dlplacer.data_parallel.elastic.packed_weights import PackedWeights


class Centre:
    """The centre's weights and float buffers as a vector, and its optimizer if it has one."""

    def __init__(self, rule: OuterRule, packed: PackedWeights) -> None:
        self.rule = rule
        self.packed = packed
        self.vector = packed.empty(packed.float_count).zero_()
        self.optimizer: torch.optim.Optimizer | None = None
        if rule.outer is not None:
            views = [nn.Parameter(self.vector[part.start : part.stop]) for part in packed.parameters]
            for view, part in zip(views, packed.parameters, strict=True):
                view.data = view.data.view(part.tensor.shape)
            trainable = [getattr(part.owner, part.attribute) for part in packed.parameters]
            self.optimizer = _optimizer_of(rule.outer, views, trainable)
            self._views = views

    def move(self, total: Tensor, own: Tensor | None, workers: int) -> None:
        """Move the centre, and this worker's weights and float buffers with it.

        Parameters
        ----------
        total, own
            Differences to the centre's present values: the sum of all workers', and this worker's, which is used up.
            Without `own` a worker takes the centre's values.
        """
        packed, weights = self.packed, slice(self.packed.parameter_count)
        buffers = slice(self.packed.parameter_count, self.packed.float_count)
        mean = total[buffers] / workers
        if own is not None:
            torch.sub(mean, own[buffers], out=own[buffers])
            packed.add(own, packed.float_buffers)
        self.vector[buffers] += mean
        if self.rule.pull is not None:
            assert own is not None
            packed.add(own, packed.parameters, -self.rule.pull)
            self.vector[weights].add_(total[weights], alpha=self.rule.pull)
        elif own is None:
            self._outer_step(total[weights], workers)
            packed.assign(self.vector)
        else:
            # The way to the centre's new values from where the worker was: (new − old) − own.
            own[weights] += self.vector[weights]
            self._outer_step(total[weights], workers)
            packed.add(torch.sub(self.vector[weights], own[weights], out=own[weights]), packed.parameters)

    def state(self) -> dict[str, Any]:
        """Values by name, and the optimizer's state."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"values": self.packed.named(self.vector), "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        self.packed.from_named(state["values"], self.vector)
        if self.optimizer is not None and state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    def _outer_step(self, total: Tensor, workers: int) -> None:
        if self.optimizer is None:
            self.vector[: self.packed.parameter_count].add_(total, alpha=1 / workers)
            return
        # The pseudo-gradient points from the workers' mean to the centre: descending moves the centre to the mean.
        gradient = total.mul_(-1 / workers)
        for view, part in zip(self._views, self.packed.parameters, strict=True):
            view.grad = gradient[part.start : part.stop].view(view.shape)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _optimizer_of(
    outer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] | torch.optim.Optimizer,
    views: list[nn.Parameter],
    trainable: list[nn.Parameter],
) -> torch.optim.Optimizer:
    if not isinstance(outer, torch.optim.Optimizer):
        return outer(views)
    # As mixed-precision wrappers do with their master weights: the user's own optimizer, so that schedulers of it work.
    of = {id(parameter): view for parameter, view in zip(trainable, views, strict=True)}
    for group in outer.param_groups:
        strangers = [tuple(parameter.shape) for parameter in group["params"] if id(parameter) not in of]
        if strangers:
            raise InputError(
                f"the outer optimizer holds a parameter of shape {strangers[0]} that is not a trainable parameter of "
                "the model; make it of model.parameters(), or give what makes one, as "
                "functools.partial(torch.optim.SGD, lr=0.7)"
            )
    for group in outer.param_groups:
        group["params"] = [of[id(parameter)] for parameter in group["params"]]
    return outer
