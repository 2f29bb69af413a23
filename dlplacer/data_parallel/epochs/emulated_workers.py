"""N data-parallel workers emulated on one device by delayed updates (Pal et al. 2019, section 4.2), with codecs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary.bucket import kernels_for, limits_and_scalers, stream_key
from dlplacer.machines.costs.gradient_codecs import CODECS

Noise = Callable[[Tensor], Tensor]
Trainer = tuple[nn.Module, torch.optim.Optimizer, Iterable[Any]]
Batch = TypeVar("Batch")
CLIP = 2.5
"""Default clip of `dlplacer.data_parallel.TernaryState` in standard deviations (Wen et al. 2017, eq. 21)."""
_SCALINGS: dict[str, Callable[[int], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda workers: 1.0}


class EmulatedWorkers:
    """Trains a model like N workers; pass it to `measure_epochs`.

    With an exchange at every step, N mini-batches give one update with their mean gradient. Each gradient is encoded
    and decoded separately. With a period τ every worker has its own model and optimizer and takes τ steps on its own
    mini-batches; then all weights are averaged, and each worker's changes are encoded and decoded.

    Parameters
    ----------
    make
        Seed → (model, optimizer, loader of one epoch's mini-batches). The same seed must make the same model.
    loss
        (model, mini-batch) → the loss of a worker's mini-batch, a scalar tensor.
    metric
        Model → the value compared with the goal after each epoch, in evaluation mode without gradients; None: the
        epoch's mean loss.
    rate_scaling
        Scaling of the learning rate with the number of workers: ``linear`` as in Pal et al. 2019, ``sqrt`` or
        ``none``. With a period above 1 the rate is not scaled, because every worker steps on its own mini-batch.
    min_numel
        Tensors with fewer elements stay in full precision with the ternary codec, as in `TernaryState`.
    name
        Training's name in checkpoints; "" derives it from `make` and the rate and codec settings.
    """

    def __init__(
        self,
        make: Callable[[int], Trainer],
        loss: Callable[[nn.Module, Any], Tensor],
        metric: Callable[[nn.Module], float] | None = None,
        *,
        rate_scaling: str = "linear",
        min_numel: int = 4096,
        name: str = "",
    ) -> None:
        if rate_scaling not in _SCALINGS:
            raise InputError(f"rate_scaling is {rate_scaling!r}; use one of {', '.join(_SCALINGS)}")
        self.make, self.loss, self.metric, self.rate_scaling = make, loss, metric, rate_scaling
        self.min_numel = min_numel
        made_by = f"{make.__module__}:{getattr(make, '__qualname__', type(make).__qualname__)}"
        self.name = name or f"{made_by}, rates {rate_scaling}, ternary from {min_numel} elements"

    def __call__(self, workers: int, seed: int, /, codec: str | None = None, period: int = 1) -> Iterator[float]:
        """The metric after every epoch; the iterator does not end."""
        torch.manual_seed(seed)
        noise = codec_noise(codec, seed, self.min_numel)
        trainers = [self.make(seed) for _ in range(workers if period > 1 else 1)]
        model, _, loader = trainers[0]
        if period == 1:
            for group in trainers[0][1].param_groups:
                group["lr"] *= _SCALINGS[self.rate_scaling](workers)
        while True:
            if period == 1:
                losses = [self._update(trainers[0], chosen, noise) for chosen in rounds(loader, workers)]
            else:
                chosen_for_all = rounds(loader, workers * period)
                losses = [self._local_steps(trainers, chosen, period, noise) for chosen in chosen_for_all]
            yield fmean(losses) if self.metric is None else self._measured(model, self.metric)

    def _update(self, trainer: Trainer, chosen: Sequence[Any], noise: Noise) -> float:
        """Update once with the mean of the workers' gradients, and return their mean loss."""
        model, optimizer, _ = trainer
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sums: list[Tensor | None] = [None] * len(trained)
        losses = []
        for batch in chosen:
            optimizer.zero_grad()
            losses.append(self._backward(model, batch))
            for place, parameter in enumerate(trained):
                if parameter.grad is not None:
                    sent = noise(parameter.grad) / len(chosen)
                    before = sums[place]
                    sums[place] = sent if before is None else before + sent
        for parameter, total in zip(trained, sums, strict=True):
            parameter.grad = total
        optimizer.step()
        return fmean(losses)

    def _local_steps(self, trainers: Sequence[Trainer], chosen: Sequence[Any], period: int, noise: Noise) -> float:
        """Take the steps of every worker, average their weights, and return their mean loss."""
        centre = [value.detach().clone() for value in _averaged(trainers[0][0])]
        losses = []
        for number, (model, optimizer, _) in enumerate(trainers):
            for batch in chosen[number * period : (number + 1) * period]:
                optimizer.zero_grad()
                losses.append(self._backward(model, batch))
                optimizer.step()
        with torch.no_grad():
            changes = [
                [noise(value - start) for value, start in zip(_averaged(model), centre, strict=True)]
                for model, _, _ in trainers
            ]
            means = [sum(parts) / len(trainers) for parts in zip(*changes, strict=True)]
            for model, _, _ in trainers:
                for value, start, mean in zip(_averaged(model), centre, means, strict=True):
                    value.copy_(start + mean)
        return fmean(losses)

    def _backward(self, model: nn.Module, batch: Any) -> float:
        model.train()
        loss = self.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _measured(self, model: nn.Module, metric: Callable[[nn.Module], float]) -> float:
        model.eval()
        with torch.no_grad():
            return float(metric(model))


def _averaged(model: nn.Module) -> list[Tensor]:
    """Parameters and float buffers, which workers average; each worker keeps its own integer buffers."""
    return [value for value in (*model.parameters(), *model.buffers()) if value.is_floating_point()]


def delayed_updates(
    batches: Iterable[Batch], workers: int, backward: Callable[[Batch, float], object], update: Callable[[], object]
) -> int:
    """Train one epoch like `workers` workers, and return the number of updates.

    N mini-batches run forward and backward before one update with their mean gradient, which is the update of N
    data-parallel workers.

    Parameters
    ----------
    batches
        Mini-batches of one epoch, each as large as one worker's; an incomplete last round is left out.
    backward
        Called with each mini-batch and 1 ÷ workers: adds the gradient of the loss times that factor to the accumulated
        gradient.
    update
        Called after every round: applies the accumulated gradient and clears it.

    Raises
    ------
    InputError
        If an epoch has fewer mini-batches than there are workers.
    """
    updates = 0
    for chosen in rounds(batches, workers):
        # Each gradient counts 1 ÷ workers, so the sum is their mean, like the result of an all-reduce.
        for each in chosen:
            backward(each, 1 / workers)
        update()
        updates += 1
    return updates


def rounds(batches: Iterable[Batch], size: int) -> Iterator[tuple[Batch, ...]]:
    """Consecutive rounds of `size` mini-batches; an incomplete last round is left out."""
    if size < 1:
        raise InputError(f"{size} workers; there must be at least 1")
    chosen: tuple[Batch, ...] = ()
    for chosen in zip(*[iter(batches)] * size, strict=False):
        yield chosen
    if not chosen:
        raise InputError(
            f"{size} workers need as many mini-batches per epoch, and there are fewer; use fewer workers, smaller "
            "mini-batches or more data"
        )


def codec_noise(codec: str | None, seed: int, min_numel: int) -> Noise:
    """Tensor → the decoded tensor that other workers receive; every call draws new numbers, determined by the seed.

    Tensors with fewer than `min_numel` elements stay in full precision with the ternary codec.
    """
    if codec in (None, "none"):
        return lambda tensor: tensor
    if codec == "fp16":
        return lambda tensor: tensor.half().to(tensor.dtype)
    if codec != "ternary":
        raise InputError(f"there is no codec {codec!r} to emulate; use one of {', '.join(CODECS)}")
    calls = count(1)

    def noise(tensor: Tensor) -> Tensor:
        call = next(calls)
        if tensor.numel() < min_numel:
            return tensor
        flat = tensor.detach().float().flatten()
        limits, scalers = limits_and_scalers([flat], CLIP)
        codes = torch.empty(flat.shape, dtype=torch.int8, device=flat.device)
        key = stream_key(seed, call, "", 0)
        kernels_for(flat.device.type).draw(flat, limits[0], scalers[0], *key, codes)
        return (scalers * codes).view_as(tensor).to(tensor.dtype)

    return noise
