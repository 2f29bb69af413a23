"""The options of a solve: its assumptions about the machine and the step, and its objective."""

from dataclasses import dataclass
from typing import Annotated, Any

from dlplacer.core.errors import InputError
from dlplacer.core.record import OneOf, Record, record


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective; `figure` is the field of `Plan` that a solve minimises, and to which lower bound and gap refer.

    With `ends_pay` a transfer adds to the loads of its sender and receiver, except on synchronous devices (host cores).
    """

    figure: str
    label: str
    ends_pay: bool = False

    @property
    def is_makespan(self) -> bool:
        """True if the objective is the time of one step; False if it is the time per step in steady state."""
        return self.figure == "makespan_s"


OBJECTIVES = {
    "makespan": Objective("makespan_s", "makespan"),
    "throughput": Objective("period_s", "period"),
    "max-load": Objective("period_s", "period", ends_pay=True),
}
"""Name of an objective → its definition."""


DECISIONS = {
    "contention": ("whether a link direction carries one transfer at a time", "link", "none"),
    "delay": ("how a tensor passes a router", "cut-through", "store-and-forward"),
    "routing": ("any simple path, or the one of least delay", "free", "shortest"),
    "transfers": ("once for every device that reads a tensor, or for every edge", "device", "edge"),
    "memory": ("the peak of what is alive, or the sum of footprints", "live", "sum"),
    "step": ("with the host's barrier at the loss, or as the joint step runs", "autograd", "joint"),
    "objective": ("least step time, or most steps per second in steady state", "makespan", "throughput", "max-load"),
}
"""Option → its decision and its values, the default first; docs/reference/formats.md explains each value."""

CHOICES = {name: tuple(values) for name, (_, *values) in DECISIONS.items()}
"""Option → its values, the default first."""


@record(frozen=True)
class Options(Record):
    """The assumptions of a solve; a plan made with the defaults runs as predicted.

    >>> dp.Options(memory="sum").to_dict()["memory"]
    'sum'

    Objectives other than the makespan set `routing` to shortest. Raises InputError if a value is not among `CHOICES`.
    """

    contention: Annotated[str, OneOf(CHOICES["contention"])] = "link"
    delay: Annotated[str, OneOf(CHOICES["delay"])] = "cut-through"
    routing: Annotated[str, OneOf(CHOICES["routing"])] = "free"
    transfers: Annotated[str, OneOf(CHOICES["transfers"])] = "device"
    memory: Annotated[str, OneOf(CHOICES["memory"])] = "live"
    step: Annotated[str, OneOf(CHOICES["step"])] = "autograd"
    objective: Annotated[str, OneOf(CHOICES["objective"])] = "makespan"

    def __post_init__(self) -> None:
        if not OBJECTIVES[self.objective].is_makespan:
            object.__setattr__(self, "routing", "shortest")

    def require_makespan(self, what: str) -> None:
        """Raise InputError unless the objective is the makespan; `what` is a command or parameter."""
        if self.objective != "makespan":
            raise InputError(f"{what} supports only the makespan; the objective here is {self.objective!r}")

    @classmethod
    def paper(cls) -> "Options":
        """The assumptions of eq. 7–13 of Pal et al. 2019."""
        return cls("none", "store-and-forward", "free", "edge", "sum", "joint")

    def to_dict(self) -> dict[str, Any]:
        """Option name → value, as in a plan file."""
        return {name: getattr(self, name) for name in CHOICES}
