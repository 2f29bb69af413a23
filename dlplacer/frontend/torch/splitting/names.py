"""Splits by name: ``split:convolution_4:batch:2``, as a graph's list of rewrites records them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import CaptureError

_SPLIT = re.compile(r"split:(?P<op>[^:\s]+):(?P<axis>[a-z]+\d*):(?P<parts>\d+)")
_PREFIX = "split:"


@dataclass(frozen=True, order=True)
class OpSplit:
    """An op, the axis along which it is cut, and the number of its parts.

    Attributes
    ----------
    axis
        An axis of `dlplacer.frontend.torch.splitting.rules.patterns_of` for the op: ``batch``, ``channel``, …
    """

    op: str
    axis: str
    parts: int = 2

    def __post_init__(self) -> None:
        if self.parts < 2:
            raise CaptureError(f"op {self.op!r} cannot be split into {self.parts} parts; give at least 2")

    def __str__(self) -> str:
        return f"{_PREFIX}{self.op}:{self.axis}:{self.parts}"


def is_split(rewrite: str) -> bool:
    """True if the name of a rewrite means the split of one op."""
    return rewrite.startswith(_PREFIX)


def parse_split(rewrite: str) -> OpSplit:
    """The split that a name means.

    Raises
    ------
    CaptureError
        If the name is not op, axis and number of parts.
    """
    match = _SPLIT.fullmatch(rewrite)
    if match is None:
        raise CaptureError(f"rewrite {rewrite!r} is not understood; write split:OP:AXIS:PARTS, as in split:mm:batch:2")
    return OpSplit(match["op"], match["axis"], int(match["parts"]))


def parse_splits(rewrites: Sequence[str]) -> tuple[OpSplit, ...]:
    """The splits among the names of rewrites, in order.

    Raises
    ------
    CaptureError
        If one is not understood, or an op is split twice.
    """
    splits = tuple(parse_split(rewrite) for rewrite in rewrites if is_split(rewrite))
    seen: set[str] = set()
    for split in splits:
        if split.op in seen:
            raise CaptureError(f"op {split.op!r} is split twice; split it once, into more parts")
        seen.add(split.op)
    return splits
