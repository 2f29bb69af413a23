"""What a user chooses about ternary gradients, checked once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError

AUTO, GATHER, SUMS = "auto", "all-gather", "sums"
TRANSPORTS = (AUTO, GATHER, SUMS)
WHOLE = "all-reduce"
"""How buckets travel in which nothing is coded."""


@dataclass(frozen=True)
class TernarySettings:
    """The choices of `dlplacer.data_parallel.TernaryState`, which describes them."""

    clip: float
    share_scaler: bool
    min_numel: int
    exclude: tuple[str, ...]
    transport: str
    seed: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(
                f"clip is {self.clip}; it must be a number of standard deviations above 0, such as 2.5 (a large one, "
                "such as 1e9, clips nothing)"
            )
        if self.min_numel < 1:
            raise InputError(f"min_numel is {self.min_numel}; it must be at least 1 element")
        if self.transport not in TRANSPORTS:
            raise InputError(f"transport is {self.transport!r}; choose one of {', '.join(map(repr, TRANSPORTS))}")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must fit into 64 bits")


def exclusions(exclude: Sequence[str]) -> tuple[str, ...]:
    """The patterns, where a single one is not taken for its letters.

    Raises
    ------
    InputError
        If one is not text.
    """
    patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(
                f"exclude holds a {type(pattern).__name__}; give names of parameters as model.named_parameters() has "
                "them, or patterns such as 'fc.*'"
            )
    return patterns
