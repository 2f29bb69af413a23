"""A part of a job's batch: what a replica or a micro-batch takes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.planning.pipeline.micro_batch_names import BatchCut

_BATCH_DIMS = (0, 1)


def part_of(job: Job, number: int, cut: BatchCut) -> Job:
    """The job with one of the equal parts of every input and target that the cut names.

    Raises
    ------
    InputError
        If a dimension cannot be cut into equal parts: means over unequal parts are not the mean of the batch.
    """
    leaves, tree = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    parts = [
        _part(leaf, cut.dim(position), number, cut.count) if isinstance(leaf, torch.Tensor) else leaf
        for position, leaf in enumerate(leaves)
    ]
    args, kwargs, targets = pytree.tree_unflatten(parts, tree)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


def likely_dims(job: Job, count: int) -> Iterator[tuple[int | None, ...]]:
    """Dimensions along which a job's inputs may be cut into so many equal parts, the most plausible first.

    A batch size is a size of dimension 0 or 1 that some input has; the more inputs have it, the sooner it comes. Each
    input is cut where it has that size, dimension 0 first. Then come variants in which one input is cut elsewhere or
    not at all: sizes may be equal by chance.
    """
    leaves = flat_inputs(job)
    places = [(size, dim) for leaf in leaves for dim, size in _sizes(leaf) if size % count == 0 and size >= count]
    shared = {
        (size, dim): sum(any(size == other for _, other in _sizes(leaf)) for leaf in leaves) for size, dim in places
    }
    found: dict[tuple[int | None, ...], None] = {}
    bases = []
    for size, dim in sorted(shared, key=lambda place: (-shared[place], place[1])):
        order = sorted(_BATCH_DIMS, key=lambda each, first=dim: each != first)
        base = tuple(next((each for each in order if (each, size) in _sizes(leaf)), None) for leaf in leaves)
        bases.append((size, base))
    for _, base in bases:
        found.setdefault(base)
    for size, base in bases:
        for position, leaf in enumerate(leaves):
            options = [dim for dim, other in _sizes(leaf) if other == size]
            for dim in (*options, None) if options else ():
                changed = (*base[:position], dim, *base[position + 1 :])
                if any(each is not None for each in changed):
                    found.setdefault(changed)
    yield from found


def _sizes(leaf: Any) -> list[tuple[int, int]]:
    if not isinstance(leaf, torch.Tensor):
        return []
    return [(dim, int(leaf.shape[dim])) for dim in _BATCH_DIMS if dim < leaf.dim()]


def _part(leaf: torch.Tensor, dim: int | None, number: int, count: int) -> torch.Tensor:
    if dim is None:
        return leaf
    if leaf.dim() <= dim or leaf.shape[dim] % count or not leaf.shape[dim]:
        raise InputError(
            f"an input of shape {list(leaf.shape)} cannot be cut into {count} equal parts; use a batch that "
            f"{count} divides"
        )
    size = leaf.shape[dim] // count
    return leaf.narrow(dim, number * size, size)
