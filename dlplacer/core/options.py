"""What a solve assumes about the machine and the step."""

from dataclasses import dataclass, fields
from typing import Any

from dlplacer.core.errors import InputError

CHOICES: dict[str, tuple[str, ...]] = {
    "contention": ("link", "none"),
    "delay": ("cut-through", "store-and-forward"),
    "routing": ("free", "shortest"),
    "transfers": ("device", "edge"),
    "memory": ("live", "sum"),
    "step": ("autograd", "joint"),
}
"""Option → its values, the default first."""


@dataclass(frozen=True)
class Options:
    """The assumptions of a solve.

    Attributes
    ----------
    contention
        ``link``: a link direction carries one transfer at a time; ``none``: any number.
    delay
        ``cut-through``: bytes ÷ the narrowest link + Σ latencies; ``store-and-forward``: the sum of eq. 11.
    routing
        ``free``: among simple paths; ``shortest``: the route of least delay for a tensor's bytes.
    transfers
        ``device``: a tensor goes to a device once; ``edge``: once for every edge.
    memory
        ``live``: the peak of what is alive; ``sum``: the sum of footprints of eq. 13.
    step
        ``autograd``: no backward op starts before all forward ops have ended; ``joint``: no such barrier.

    Raises
    ------
    InputError
        If a value is not among `CHOICES`.
    """

    contention: str = "link"
    delay: str = "cut-through"
    routing: str = "free"
    transfers: str = "device"
    memory: str = "live"
    step: str = "autograd"

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value not in CHOICES[entry.name]:
                raise InputError(f"option {entry.name} is {value!r}; use one of {', '.join(CHOICES[entry.name])}")

    @classmethod
    def paper(cls) -> "Options":
        """The assumptions of the paper's equations 7–13."""
        return cls("none", "store-and-forward", "free", "edge", "sum", "joint")

    def to_dict(self) -> dict[str, Any]:
        """Option name → value, as in a plan file."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}
