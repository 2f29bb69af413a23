"""Compare micro-batches with the whole batch in plain PyTorch, to find a cut that computes the batch's loss."""

import contextlib
import copy
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.core.errors import CaptureError, InputError, first_line
from dlplacer.core.units import format_bytes
from dlplacer.frontend.torch.capture import trace_job
from dlplacer.frontend.torch.job import Job, autocast_of, flat_inputs, loss_of
from dlplacer.frontend.torch.tracing.micro_batches import divisor_value, divisors, part_of, with_leaves
from dlplacer.frontend.torch.tracing.stand_in import is_empty
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.planning.pipeline.micro_batch_names import MEAN, SUM, BatchCut

_ROUNDING = {None: 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Autocast dtype → largest relative difference of gradients that counts as rounding; for losses, a tenth."""

_SHIFTS = 1, 2
"""Places by which a confirmation shifts the first input's samples; the n-th input's are shifted n times as far."""


@dataclass(frozen=True)
class Difference:
    """Loss of the micro-batches, loss of the whole batch, and ‖difference of gradients‖ ÷ ‖gradients of the batch‖."""

    loss: float
    expected: float
    gradient: float

    def is_rounding(self, autocast: str | None) -> bool:
        """True if another order of floating-point sums explains the difference."""
        most = _ROUNDING[autocast]
        return abs(self.loss - self.expected) <= 0.1 * most * max(1e-6, abs(self.expected)) and self.gradient <= most

    def __str__(self) -> str:
        return f"loss {self.loss:.6g} for {self.expected:.6g}, gradients off by {100 * self.gradient:.2g} %"


@dataclass(frozen=True)
class ComparedCut:
    """A cut of the batch, and a warning for each change that the cut makes to a step's results."""

    cut: BatchCut
    warnings: tuple[str, ...] = ()


def compared_cut(job: Job, count: int, rewrites: Sequence[str] = (), *, allow_other_loss: bool = False) -> ComparedCut:
    """The cut into micro-batches whose step has the loss and gradients of the whole batch.

    The two steps run in plain PyTorch on the job's own tensors, or on random ones if some have no data; every random op
    returns constants. `likely_cuts` are tried in turn; losses of micro-batches are joined as a mean, else a sum, else a
    mean weighted by counts of tokens or class weights. A cut that passes is tried again on shifted samples. Batch norm
    in training mode is accepted: a warning states the change, and the comparison uses its evaluation mode. If every cut
    changes the results beyond rounding, a CaptureError is raised unless `allow_other_loss`.
    """
    if job.mode != "train":
        raise CaptureError("micro-batches accumulate gradients, and this job infers; use mode='train'")
    cuts = likely_cuts(job, count)[:12] or [BatchCut(count)]
    # The parameters, and three sets of gradients.
    need_bytes = 4 * sum(tensor.nbytes for tensor in job.module.parameters())
    if need_bytes > os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return _not_compared(cuts[0], f"that takes {format_bytes(need_bytes)} of memory here")
    steps = _Steps(_with_data(job), count, rewrites)
    tried: dict[BatchCut, Difference] = {}
    reason: Exception | None = None
    for cut in cuts:
        try:
            found, tried[cut] = steps.compared(cut)
            if found is not None:
                found, tried[cut] = _confirmed(found, tried[cut], steps)
        except Exception as error:
            # Some of the guessed dimensions are not batch dimensions.
            reason = reason or error
            continue
        if found is not None:
            return found
        if not math.isfinite(tried[cut].expected):
            return _not_compared(cut, f"the loss of that is {tried[cut].expected}")
    if reason is not None and not tried:
        raise InputError(
            f"the step does not run on {count} equal parts of its batch ({first_line(reason)}); use a "
            f"batch that {count} divides"
        )
    cut, difference = next(iter(tried.items()))
    change = f"{count} micro-batches compute another step than the whole batch: {difference}"
    if allow_other_loss:
        return ComparedCut(cut, (change,))
    raise CaptureError(
        f"{change}. A loss must be a mean or a sum over samples, or a mean weighted by counts in the inputs; "
        "statistics over the batch and pairs within it are neither. Change the loss, use other micro-batches, or "
        "accept the difference with --allow-other-loss"
    )


def likely_cuts(job: Job, count: int) -> list[BatchCut]:
    """Cuts of a job's inputs into `count` equal parts, the most plausible first.

    A candidate is a dimension, 0 or 1, and its size; the most common sizes come first. Each input is cut along a
    dimension of that size, preferably the candidate's. Variants cut one input along its other dimension, or not at all.
    """
    shapes = [tuple(leaf.shape[:2]) if isinstance(leaf, torch.Tensor) else () for leaf in flat_inputs(job)]
    found: list[tuple[int | None, ...]] = []
    variants: list[tuple[int | None, ...]] = []
    places = {place for shape in shapes for place in enumerate(shape) if place[1] and place[1] % count == 0}
    for dim, size in sorted(places, key=lambda place: (-sum(place[1] in shape for shape in shapes), *place)):
        has = [[each for each in (dim, 1 - dim) if shape[each : each + 1] == (size,)] for shape in shapes]
        base = tuple(next(iter(dims), None) for dims in has)
        found.append(base)
        for position, dims in enumerate(has):
            variants += [(*base[:position], other, *base[position + 1 :]) for other in (*dims[1:], None) if dims]
    all_first = tuple(0 if isinstance(leaf, torch.Tensor) else None for leaf in flat_inputs(job))
    kept = dict.fromkeys((*found, *(dims for dims in variants if {*dims} != {None})))
    return [BatchCut(count, () if dims == all_first else dims) for dims in kept]


def _not_compared(cut: BatchCut, reason: str) -> ComparedCut:
    text = f"micro-batches were not compared with the whole batch: {reason}; their loss may differ"
    return ComparedCut(cut, (text,))


def _confirmed(found: ComparedCut, change: Difference, steps: "_Steps") -> tuple[ComparedCut | None, Difference]:
    """The cut, or None if shifted data refute it, and a difference: dependent samples may share a part by chance."""
    for shift in _SHIFTS:
        # Shift the samples of each input by a different distance.
        def moved(leaf: torch.Tensor, position: int, shift: int = shift, cut: BatchCut = found.cut) -> torch.Tensor:
            dim = cut.dim(position)
            return leaf if dim is None else leaf.roll(shift * (position + 1), dim)

        other = _Steps(with_leaves(steps.job, moved), steps.count, steps.rewrites)
        try:
            again, difference = other.compared(replace(found.cut, joining=MEAN))
        except Exception:
            # Inputs whose samples do not match may not run.
            continue
        if again is None and math.isfinite(difference.expected):
            return None, difference
        if again is not None and again.cut.joining != MEAN:
            found = replace(found, cut=again.cut)
    return found, change


class _Steps:
    """Steps of one job in plain PyTorch: the whole batch once, then its cuts.

    `whole`: whether batch norms are in evaluation mode → loss and gradients of the whole batch.
    """

    def __init__(self, job: Job, count: int, rewrites: Sequence[str]) -> None:
        self.job, self.count, self.rewrites = job, count, rewrites
        self.trained = [each for each in job.module.parameters() if each.requires_grad]
        self.whole: dict[bool, tuple[float, list[Any]]] = {}

    def compared(self, cut: BatchCut) -> tuple[ComparedCut | None, Difference]:
        """The cut with a joining that gives the whole batch's results, or None; and the difference for equal shares."""
        parts = [part_of(self.job, number, cut) for number in range(self.count)]
        autocast, notes = self.job.autocast, tuple[str, ...]()
        change, losses = self._difference(parts, None)
        # A module in evaluation mode is switched to training as a whole; otherwise its parts keep their modes.
        norms = (each for each in self.job.module.modules() if isinstance(each, _BatchNorm))
        differs = not change.is_rounding(autocast)
        rest, evaluates = change, differs and any(norm.training or not self.job.module.training for norm in norms)
        if evaluates:
            notes = (f"batch norm sees one micro-batch at a time, which changes the step: {change}",)
            rest, losses = self._difference(parts, None, evaluates)
        if rest.is_rounding(autocast):
            return ComparedCut(cut, notes), change
        for joining, shares in self._other_shares(cut, losses, self.whole[evaluates][0]):
            if self._difference(parts, shares, evaluates)[0].is_rounding(autocast):
                return ComparedCut(replace(cut, joining=joining), notes), change
        return None, change

    def _difference(
        self, parts: Sequence[Job], shares: Sequence[float] | None, evaluates: bool = False
    ) -> tuple[Difference, list[float]]:
        """The difference from the whole batch if micro-batches have these shares (None: equal), and their losses."""
        if evaluates not in self.whole:
            with _undone(self.job, evaluates):
                self.whole[evaluates] = self._results(self.job)
        expected, gradients = self.whole[evaluates]
        joined: list[Any] = [0.0] * len(self.trained)
        losses, total = [], 0.0
        # In sequence: each micro-batch reads the buffers that the previous one left.
        with _undone(self.job, evaluates):
            for number, part in enumerate(parts):
                share = 1 / self.count if shares is None else shares[number]
                loss, mine = self._results(part)
                losses.append(loss)
                if share:
                    total += share * loss
                    joined = [so_far + share * each for so_far, each in zip(joined, mine, strict=True)]
        both = gradients, [each - theirs for each, theirs in zip(joined, gradients, strict=True)]
        size, off = (math.hypot(*(float(each.double().norm()) for each in every)) for every in both)
        return Difference(total, expected, off / size if size else off), losses

    def _results(self, job: Job) -> tuple[float, list[Any]]:
        """Loss and gradients."""
        with _Constants():  # type: ignore[no-untyped-call]
            with autocast_of(job, torch.device("cpu")):
                loss = torch.as_tensor(loss_of(job))
            gradients = torch.autograd.grad(loss, self.trained, allow_unused=True, materialize_grads=True)
        return float(loss.detach()), [each.to_dense() if each.is_sparse else each for each in gradients]

    def _other_shares(
        self, cut: BatchCut, losses: Sequence[float], expected: float
    ) -> Iterator[tuple[str, list[float]]]:
        """Joinings whose loss equals the whole batch's, each with the share of every micro-batch."""
        near = 1e-3 * max(1e-6, abs(expected))
        if abs(sum(losses) - expected) <= near:
            yield SUM, [1.0] * self.count
        traced = trace_job(self.job, [*self.rewrites, str(cut)])
        tensors = job_tensors(self.job)
        buffers = {name: tensors[slot.name] for name, slot in traced.inputs.items() if slot.role == "buffer"}
        places = {name: slot.position for name, slot in traced.inputs.items() if slot.role == "input"}
        leaves = [flat_inputs(part_of(self.job, number, cut)) for number in range(self.count)]
        given = [{**buffers, **{name: mine[place] for name, place in places.items()}} for mine in leaves]
        for node in divisors(traced):
            counts = [float(divisor_value(traced, node, each)) for each in given]
            total = sum(counts)
            if not total or len(set(counts)) == 1:
                continue
            shares = [count / total for count in counts]
            joined = sum(share * loss for share, loss in zip(shares, losses, strict=True) if share)
            if abs(joined - expected) <= near:
                yield node.name, shares


class _Constants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes every random op return one constant, so that draws do not depend on the batch size."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return made
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                tensor.fill_(0.5 if tensor.is_floating_point() else int(tensor.dtype is torch.bool))
        return made


@contextlib.contextmanager
def _undone(job: Job, evaluates: bool) -> Iterator[None]:
    """Run in training mode (batch norms in evaluation if `evaluates`); restore buffers, modes and random state."""
    module = job.module
    modes = [(each, each.training) for each in module.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    if not module.training:
        module.train()
    for each in module.modules() if evaluates else ():
        if isinstance(each, _BatchNorm):
            each.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for each, mode in modes:
            each.training = mode


def _with_data(job: Job) -> Job:
    """The job with real tensors: its own, or random ones if some have no data."""
    if not any(map(is_empty, (*job.module.parameters(), *job.module.buffers(), *flat_inputs(job)))):
        return job
    generator = torch.Generator().manual_seed(0)
    module = copy.deepcopy(job.module).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            # Buffers such as variances are positive; any table has a row 1.
            low, high = (-0.1, 0.1) if isinstance(tensor, torch.nn.Parameter) else (0.5, 1.5)
            tensor.uniform_(low, high, generator=generator) if tensor.is_floating_point() else tensor.fill_(1)

    def drawn(leaf: torch.Tensor, _: int) -> torch.Tensor:
        if not is_empty(leaf):
            return leaf
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator)
        return torch.randint(2, leaf.shape, generator=generator).to(leaf.dtype)

    return with_leaves(replace(job, module=module), drawn)
