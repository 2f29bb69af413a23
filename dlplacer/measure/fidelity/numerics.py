"""The numbers of a placed step against those of plain PyTorch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from dlplacer.measure.fidelity.draws import SameDraws, random_ops
from dlplacer.runtime.placed.placed_module import PlacedModule


def compare_once(
    placed: PlacedModule,
    plain: nn.Module,
    placed_step: Callable[[], torch.Tensor],
    plain_step: Callable[[AbstractContextManager[object]], torch.Tensor],
    updated: bool,
) -> tuple[float, str]:
    """Run both steps once; returns the largest absolute difference, and ``none``, ``same`` or ``different`` draws.

    Parameters
    ----------
    plain_step
        Runs plain PyTorch inside a context that it is given.
    updated
        Whether the step updates the parameters, so that these are compared and not the gradients.
    """
    ours = placed_step()
    ops = random_ops(placed.captured.executable)
    device = next(iter(placed.devices.values())).torch_device
    draws = SameDraws(ops, placed.seed, placed.steps_done, device) if ops else None
    theirs = plain_step(nullcontext() if draws is None else draws)
    told = "none" if draws is None else "same" if draws.complete else "different"
    return largest_difference(ours, theirs, placed, plain, updated), told


def largest_difference(
    ours: torch.Tensor, theirs: torch.Tensor, placed: nn.Module, plain: nn.Module, updated: bool
) -> float:
    """Of the loss and of gradients, or of the parameters where the step has updated them."""
    pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = [(ours, theirs)]
    for mine, other in zip(placed.parameters(), plain.parameters(), strict=True):
        pairs.append((mine.detach(), other.detach()) if updated else (mine.grad, other.grad))
    differences = [(a.cpu().float() - b.cpu().float()).abs().max() for a, b in pairs if a is not None and b is not None]
    return float(max(differences))
