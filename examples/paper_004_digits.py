"""What TernGrad claims of its gradients and its remedies, measured on scikit-learn's digits by two emulated workers.

The bound on gradients, which clipping and a scaler for each layer bring closer to that of SGD (section 3.3), and
smaller dropout and weight decay in place of the noise that ternary gradients add (section 4.2).

Run it: ``python examples/paper_004_digits.py --output demo`` (about a minute); ``--json`` prints a list of rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import fmean

import digits
import torch
from _paper_table import Page, Row, assumed, report, stated
from torch import Tensor, nn

from dlplacer.data_parallel import EmulatedWorkers

CLIP, WORKERS, EPOCHS, SEEDS = 2.5, 2, 10, (0, 1, 2)
# Gradients, dropout, weight decay: those of AlexNet's table, then what the text suggests for ternary gradients.
SETTINGS = {
    "float": (None, 0.5, 5e-4),
    "ternary": ("ternary", 0.5, 5e-4),
    "ternary, less dropout": ("ternary", 0.2, 5e-4),
    "ternary, less dropout and decay": ("ternary", 0.2, 1.25e-4),
}
BOUNDS = ("one scaler", "a scaler for each tensor", "a scaler for each tensor, clipped")
HERE = assumed("digits; network, optimizer and rate of digits.py; for accuracies two emulated workers")
DRAWN = assumed("seeds 0, 1 and 2")


def make(dropout: float, decay: float, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Sequence[object]]:
    """The network of digits.py with dropout before its last layer, its optimizer, and the mini-batches of an epoch."""
    task = digits.Task("", seed, 1)
    plain = list(task.model())
    model = nn.Sequential(*plain[:-1], nn.Dropout(dropout), plain[-1])
    optimizer = task.optimizer(model)
    optimizer.param_groups[0]["weight_decay"] = decay
    return model, optimizer, task.batches(0, 1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Of one worker's mini-batch."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


@cache
def accuracies(codec: str | None, dropout: float, decay: float, seed: int) -> tuple[float, ...]:
    """Share of the test digits that are recognized, after every epoch."""
    torch.set_num_threads(1)
    train = EmulatedWorkers(partial(make, dropout, decay), loss, digits.accuracy, rate_scaling="none", min_numel=1)
    return tuple(islice(train(WORKERS, seed, codec=codec), EPOCHS))


@cache
def bounds(clip: float) -> Mapping[str, float]:
    """Name of a way to ternarize → E‖g‖∞‖g‖₁ ÷ E‖g‖² over a training, with the change by clipping beside it."""
    torch.set_num_threads(1)
    model, optimizer, batches = make(0.0, 0.0, 0)
    sums = dict.fromkeys((*BOUNDS, "exact", "clipped", "shorter, %", "turned, degrees"), 0.0)
    for batch in (*batches, *batches):
        optimizer.zero_grad()
        loss(model, batch).backward()
        for name, value in _of_gradient([each.grad.flatten() for each in model.parameters()], clip):
            sums[name] += value
        optimizer.step()
    steps = 2 * len(batches)
    found = {name: sums[name] / sums["exact"] for name in BOUNDS[:2]}
    found[BOUNDS[2]] = sums[BOUNDS[2]] / sums["clipped"]
    return {**found, **{name: sums[name] / steps for name in ("shorter, %", "turned, degrees")}}


def _of_gradient(gradients: Sequence[Tensor], clip: float) -> Iterator[tuple[str, float]]:
    """The terms of the bounds (eq. 16 and 18) of one gradient."""
    whole = torch.cat(list(gradients))
    limits = [clip * each.std(unbiased=False) for each in gradients]
    clipped = [each.clamp(-limit, limit) for each, limit in zip(gradients, limits, strict=True)]
    after = torch.cat(clipped)
    yield "exact", float(whole.square().sum())
    yield "clipped", float(after.square().sum())
    yield BOUNDS[0], float(whole.abs().max() * whole.abs().sum())
    yield BOUNDS[1], sum(float(each.abs().max() * each.abs().sum()) for each in gradients)
    yield BOUNDS[2], sum(float(each.abs().max() * each.abs().sum()) for each in clipped)
    yield "shorter, %", 100 * float(1 - after.norm() / whole.norm())
    cosine = nn.functional.cosine_similarity(whole, after, dim=0).clamp(max=1.0)
    yield "turned, degrees", float(torch.rad2deg(torch.acos(cosine)))


def rows() -> tuple[Row, ...]:
    """The measured claims."""
    clip = assumed("clip c, in σ, lost in the text", CLIP)
    found = [
        Row(
            f"Bound of ternary gradients over that of SGD, {name}",
            "section 3.2, 3.3, eq. 16, 18",
            None,
            (lambda clip, name=name: bounds(clip)[name]) if name == BOUNDS[2] else lambda name=name: bounds(CLIP)[name],
            (clip, HERE) if name == BOUNDS[2] else (HERE,),
            "a ratio near 1 means a bound near that of SGD; the text says that scalers per layer and clipping lower it",
        )
        for name in BOUNDS
    ]
    for name in ("shorter, %", "turned, degrees"):
        found.append(
            Row(
                f"Clipping makes the gradients of digits {name}",
                "section 3.3",
                None,
                lambda clip, name=name: bounds(clip)[name],
                (clip, HERE),
                "a Gaussian gradient becomes 1.13 % shorter and turns by 2.75 degrees",
            )
        )
    for name, (codec, dropout, decay) in SETTINGS.items():
        found.append(
            Row(
                f"Accuracy on digits after {EPOCHS} epochs, %; {name}",
                "section 4.1, 4.2",
                None,
                lambda dropout, decay, codec=codec: (
                    100 * fmean(accuracies(codec, dropout, decay, seed)[-1] for seed in SEEDS)
                ),
                (
                    stated("dropout", dropout, "table 2"),
                    stated("weight decay", decay, "table 2") if decay == 5e-4 else assumed("weight decay", decay),
                    HERE,
                    DRAWN,
                ),
            )
        )
    return tuple(found)


def figure(folder: Path) -> None:
    """Draw accuracy against steps, the mean of the seeds and all of them."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.5, 4), layout="constrained")
    axes = drawn.add_subplot()
    each_epoch = len(digits.Task("", 0, 1).batches(0, 1)) // WORKERS
    steps = [each_epoch * (epoch + 1) for epoch in range(EPOCHS)]
    for name, settings in SETTINGS.items():
        curves = [accuracies(*settings, seed) for seed in SEEDS]
        (line,) = axes.plot(steps, [fmean(points) for points in zip(*curves, strict=True)], label=name)
        for curve in curves:
            axes.plot(steps, curve, color=line.get_color(), alpha=0.25, linewidth=0.8)
    axes.set(xlabel="steps", ylabel="accuracy on test digits", title=f"{WORKERS} emulated workers, {len(SEEDS)} seeds")
    axes.set_ylim(0.8, 1.0)
    axes.legend(frameon=False)
    drawn.savefig(folder / "terngrad_digits.png", dpi=120)


if __name__ == "__main__":
    report(Page("TernGrad on digits", rows()), figure)
