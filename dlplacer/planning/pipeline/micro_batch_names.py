"""Names: the rewrite that runs a step in micro-batches, and the copies of ops that it makes."""

from collections.abc import Sequence

from dlplacer.core.errors import CaptureError

_PREFIX = "micro-batches:"


def micro_batch_rewrite(count: int) -> str:
    """The name under which a graph records that its step runs in so many micro-batches: ``micro-batches:4``."""
    return f"{_PREFIX}{count}"


def is_micro_batch_rewrite(rewrite: str) -> bool:
    """Whether the name of a rewrite means micro-batches."""
    return rewrite.startswith(_PREFIX)


def micro_batches_of(rewrites: Sequence[str]) -> int:
    """The number of micro-batches that a list of rewrites asks for; 1 without such a rewrite.

    Raises
    ------
    CaptureError
        If it is given twice or is no number from 2 on.
    """
    counts = [name.removeprefix(_PREFIX) for name in rewrites if is_micro_batch_rewrite(name)]
    if len(counts) > 1 or any(not count.isdecimal() or int(count) < 2 for count in counts):
        raise CaptureError(f"rewrites ask for {' and '.join(counts)} micro-batches; give one number from 2 on")
    return int(counts[0]) if counts else 1


def copy_id(op: str, micro_batch: int) -> str:
    """Id of the copy of an op that a micro-batch runs."""
    return f"{op}_mb{micro_batch}"
