"""A part of a job's batch, for a replica or a micro-batch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.planning.pipeline.micro_batch_names import BatchCut

Dims: TypeAlias = tuple[int | None, ...]
"""[flat input] → dimension that is cut, None for an input that is not."""

_BATCH_DIMS = (0, 1)


def part_of(job: Job, number: int, cut: BatchCut) -> Job:
    """The job with one of the equal parts of every input and target that the cut names.

    A dimension that cannot be cut into equal parts is refused: means over unequal parts are no mean of the batch.
    """
    return with_leaves(job, lambda leaf, position: _part(leaf, cut.dim(position), number, cut.count))


def with_leaves(job: Job, changed: Callable[[torch.Tensor, int], torch.Tensor]) -> Job:
    """The job with other tensors as inputs and targets: ``changed(tensor, position)`` among its flat inputs."""
    leaves, tree = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    made = [changed(leaf, place) if isinstance(leaf, torch.Tensor) else leaf for place, leaf in enumerate(leaves)]
    args, kwargs, targets = pytree.tree_unflatten(made, tree)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


def likely_dims(job: Job, count: int) -> Iterator[Dims]:
    """Dimensions along which a job's inputs may be cut into so many equal parts, the most plausible first.

    A batch size is a size of dimension 0 or 1 that some input has; the more inputs have it, the sooner it comes. Each
    input is cut where it has that size, dimension 0 first. Then come variants in which one input is cut elsewhere or
    not at all: sizes may be equal by chance.
    """
    shapes = [leaf.shape if isinstance(leaf, torch.Tensor) else () for leaf in flat_inputs(job)]
    sizes = [{dim: int(shape[dim]) for dim in _BATCH_DIMS if dim < len(shape)} for shape in shapes]
    shared: dict[tuple[int, int], int] = {}
    for place in sorted({place for each in sizes for place in each.items()}):
        dim, size = place
        if size >= count and size % count == 0:
            shared[place] = sum(size in each.values() for each in sizes)
    found: dict[Dims, None] = {}
    variants: list[Dims] = []
    for dim, size in sorted(shared, key=lambda place: (-shared[place], place[0])):
        order = (dim, 1 - dim)
        has = [[each for each in order if mine.get(each) == size] for mine in sizes]
        base = tuple(next(iter(dims), None) for dims in has)
        found.setdefault(base)
        for position, dims in enumerate(has):
            others = (*dims[1:], None) if dims else ()
            variants += [(*base[:position], other, *base[position + 1 :]) for other in others]
    yield from dict.fromkeys((*found, *(dims for dims in variants if any(dim is not None for dim in dims))))


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
