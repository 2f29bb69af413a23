"""Assumptions of a solve about the machine and the step: the one place where its options are declared."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Assumption:
    """An option of the problem: the decision that it makes, the assumption behind each value, and the paper's value.

    `meaning`: value → its assumption with the equation, the default first.
    """

    decides: str
    meaning: Mapping[str, str]
    paper: str


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective of a solve: the field of `Plan` that it minimises, to which bound and gap refer, and its name.

    With `ends_pay` a transfer is part of the loads of both devices, if they are asynchronous: host cores leave it.
    """

    figure: str
    label: str
    ends_pay: bool = False

    @property
    def is_period(self) -> bool:
        """True if it is about steps in steady state."""
        return self.figure == "period_s"


OBJECTIVES = {
    "makespan": Objective("makespan_s", "makespan"),
    "throughput": Objective("period_s", "period"),
    "max-load": Objective("period_s", "period", ends_pay=True),
}
"""Objective → what it minimises."""


def _option(decides: str, meaning: Mapping[str, str], paper: str) -> str:
    # Typed as the field's value, as dataclasses type `field` itself.
    default: str = field(default=next(iter(meaning)), metadata={"assumption": Assumption(decides, meaning, paper)})
    return default


@dataclass(frozen=True)
class Options:
    """The assumptions of a solve; under the defaults a plan runs as predicted.

    >>> dp.Options(memory="sum").to_dict()["memory"]
    'sum'

    Raises InputError if a value is not among `CHOICES`.
    """

    contention: str = _option(
        "whether a link direction carries one transfer at a time",
        {"link": "a link direction carries one transfer at a time", "none": "any number of transfers at once"},
        paper="none",
    )
    delay: str = _option(
        "how a tensor passes a router",
        {
            "cut-through": "bytes ÷ the narrowest link + all latencies",
            "store-and-forward": "the sum over the links of bytes ÷ rate + latency (eq. 11)",
        },
        paper="store-and-forward",
    )
    routing: str = _option(
        "any simple path, or the one of least delay",
        {"free": "any route without a node twice", "shortest": "the route of least delay for the tensor"},
        paper="free",
    )
    transfers: str = _option(
        "once for every device that reads a tensor, or for every edge",
        {"device": "a tensor goes to a device once", "edge": "a tensor goes to a device once per consumer"},
        paper="edge",
    )
    memory: str = _option(
        "the peak of what is alive, or the sum of footprints",
        {"live": "the peak of what is alive", "sum": "the sum of all footprints (eq. 13)"},
        paper="sum",
    )
    step: str = _option(
        "with the host's barrier at the loss, or as the joint step runs",
        {"autograd": "no backward op before the loss is there", "joint": "no barrier at the loss"},
        paper="joint",
    )
    objective: str = _option(
        "least step time, or most steps per second in steady state",
        {
            "makespan": "the end of the last op",
            "throughput": "the period: the largest load of a device or link direction, by routes of least delay",
            "max-load": "the period if an asynchronous device pays once for each tensor that it sends or receives",
        },
        paper="makespan",
    )

    def __post_init__(self) -> None:
        for name, values in CHOICES.items():
            value = getattr(self, name)
            if value not in values:
                raise InputError(f"option {name} is {value!r}; use one of {', '.join(values)}")
        if OBJECTIVES[self.objective].is_period:
            object.__setattr__(self, "routing", "shortest")

    def require_makespan(self, what: str) -> None:
        """Return if the objective is the makespan; else raise InputError in the name of a command or parameter."""
        if self.objective != "makespan":
            raise InputError(f"{what} knows the makespan alone; the objective here is {self.objective!r}")

    @classmethod
    def paper(cls) -> "Options":
        """The assumptions of the paper's equations 7–13."""
        return cls(**{name: assumption.paper for name, assumption in ASSUMPTIONS.items()})

    def to_dict(self) -> dict[str, Any]:
        """Option name → value, as in a plan file."""
        return {name: getattr(self, name) for name in ASSUMPTIONS}


ASSUMPTIONS: dict[str, Assumption] = {entry.name: entry.metadata["assumption"] for entry in fields(Options)}
"""Option → what is declared of it."""

CHOICES: dict[str, tuple[str, ...]] = {name: tuple(declared.meaning) for name, declared in ASSUMPTIONS.items()}
"""Option → its values, the default first."""
