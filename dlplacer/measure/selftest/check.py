"""One thing that a self-test tried, and how it ended."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried.

    Attributes
    ----------
    value, limit
        What was measured and what it may be at most; no limit if it is only reported, no value if there is nothing to
        measure on these devices.
    note
        What a reader should know of it.
    """

    name: str
    subject: str
    value: float | None
    limit: float | None
    unit: str
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is within its limit; what is no number is not."""
        return self.limit is None or self.value is None or self.value <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """The object of a report; JSON has no infinity, and a value that is none is a text there."""
        value = self.value
        if value is not None and not math.isfinite(value):
            return {**asdict(self), "value": str(value), "passed": self.passed}
        return {**asdict(self), "passed": self.passed}


def largest_difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest absolute difference of tensors of the same names; NaN if any number is none, or a name is missing."""
    if one.keys() != other.keys():
        return math.nan
    found = [(one[name].double() - other[name].double()).abs().max() for name in one if one[name].numel()]
    return float(torch.stack(found).max()) if found else 0.0
