"""The name of the rewrite that runs a step in micro-batches, and the ids of the copies that it makes of ops."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import CaptureError

_PREFIX = "micro-batches:"
_WHOLE = "-"

MEAN, SUM = "mean", "sum"


@dataclass(frozen=True)
class BatchCut:
    """A batch cut into equal micro-batches, and the combination of their losses into the loss of the step.

    Its text as a rewrite is ``micro-batches:4``, or ``micro-batches:4:01-:sum`` with all fields.

    `dims`: [flat input] → dimension that is cut, None for an input that every micro-batch reads whole. If empty, every
    tensor is cut along dimension 0. `joining`: ``mean`` of the losses, their ``sum``, or the name of the traced scalar
    that weights them: a count of tokens, a sum of class weights.
    """

    count: int
    dims: tuple[int | None, ...] = ()
    joining: str = MEAN

    def __str__(self) -> str:
        dims = "".join(_WHOLE if dim is None else str(dim) for dim in self.dims)
        joining = "" if self.joining == MEAN else self.joining
        return f"{_PREFIX}{self.count}:{dims}:{joining}".rstrip(":")

    def dim(self, position: int) -> int | None:
        """The dimension along which the flat input at this position is cut, or None."""
        return self.dims[position] if self.dims else 0


UNCUT = BatchCut(1)


def is_micro_batch_rewrite(rewrite: str) -> bool:
    """True if this is the name of a rewrite into micro-batches."""
    return rewrite.startswith(_PREFIX)


def batch_cut_of(rewrites: Sequence[str]) -> BatchCut:
    """The cut of the batch in a list of rewrites; one micro-batch if there is no such rewrite."""
    named = [name.removeprefix(_PREFIX) for name in rewrites if is_micro_batch_rewrite(name)]
    if not named:
        return UNCUT
    count, dims, joining, *more = (*named[0].split(":"), "", "")
    known = count.isdecimal() and int(count) > 1 and set(dims) <= set("01" + _WHOLE) and not any(more)
    if len(named) > 1 or not known:
        raise CaptureError(f"rewrites ask for {' and '.join(named)} micro-batches; give one number of at least 2")
    return BatchCut(int(count), tuple(None if dim == _WHOLE else int(dim) for dim in dims), joining or MEAN)


def copy_id(op: str, micro_batch: int) -> str:
    """The id of a micro-batch's copy of an op."""
    return f"{op}_mb{micro_batch}"
