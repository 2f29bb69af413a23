"""What a step is given from outside, and what a device holds while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]
"""What a device holds between functions: tensor name → tensor, None for an edge that carries only an order."""


@dataclass(frozen=True)
class StepInputs:
    """What one step is given: bound tensors by op id, and the numbers that random ops draw from.

    Attributes
    ----------
    numbers
        Value name → Python number: values that are there before the first op, on every device.
    """

    bound: Mapping[str, Any]
    seed: int
    step: int
    numbers: Mapping[str, Any] = field(default_factory=dict)
