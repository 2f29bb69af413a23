"""The numbers of a step over several processes against those of one."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.draws import SameDraws, random_ops
from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.runtime.distributed.rank_module import RankModule, seed_of
from dlplacer.runtime.executor.optimizer_update import Updater


@dataclass(frozen=True, slots=True)
class Differences:
    """The largest of all ranks; as the attributes of `RanksReport`."""

    max_abs_error: float
    full_batch_error: float | None
    draws: str


def compare_with_one_process(
    placed: RankModule, parts: Sequence[Job], whole: Job | None, reference: nn.Module
) -> Differences:
    """Take one placed step, and the same in one process: part by part, and with the whole batch at once.

    Parameters
    ----------
    parts
        [replica] → its part of the job.
    reference
        The job's module as it was before the step; it is left alone.
    """
    mine = parts[placed.group.replica]
    placed.zero_grad(set_to_none=True)
    loss = float(placed.step(*mine.args, *mine.targets, **mine.kwargs))
    updated = mine.update is not None
    held: dict[str, torch.Tensor] = {}
    for name, value in placed.named_parameters():
        tensor = value.detach() if updated else value.grad
        if tensor is not None and not tensor.is_meta:
            held[name] = tensor.cpu()

    def worst(jobs: Sequence[Job], draws: Sequence[SameDraws | None]) -> float:
        expected_loss, expected = _one_process(jobs, draws, copy.deepcopy(reference), updated)
        differences = [abs(loss - expected_loss)]
        differences += [float((held[name] - expected[name]).abs().max()) for name in held]
        return float(max(placed.group.gathered(max(differences))))

    ops = random_ops(placed.whole.executable)
    if not ops:
        error, nothing = worst(parts, [None] * len(parts)), [None]
        return Differences(error, None if whole is None else worst([whole], nothing), "none")
    host = torch.device("cpu")
    draws = [SameDraws(ops, seed_of(replica), placed.steps_done, host) for replica in range(len(parts))]
    error = worst(parts, draws)
    return Differences(error, None, "same" if all(part.complete for part in draws) else "different")


def _one_process(
    jobs: Sequence[Job], draws: Sequence[SameDraws | None], module: nn.Module, updated: bool
) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean loss and mean gradients, or the parameters that they lead to, of one process that takes parts in turn."""
    losses: list[float] = []
    sums: dict[str, torch.Tensor] = {}
    for job, drawing in zip(jobs, draws, strict=True):
        step = EagerStep(replace(job, optimizer=None), module, torch.device("cpu"))
        with nullcontext() if drawing is None else drawing:
            losses.append(float(step()))
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad / len(jobs)
    if updated:
        updater = Updater(jobs[0].update)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in sums:
                    updater(name, parameter, sums[name])
                sums[name] = parameter.detach()
    return fmean(losses), sums
