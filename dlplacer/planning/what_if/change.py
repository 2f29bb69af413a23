"""A change of a plan's problem, and what it brings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology

STATUSES = {
    "solved": "solved again, beginning with the plan; the step is the best found in its share of the budget",
    "kept": "the plan as it is, or its placement and order under the change; solving again may find more",
    "estimated": "predicted by the model of pipelines or of data parallelism, whose step is not one of op placement",
    "no gain": "its bound shows that it gains next to nothing",
    "not tried": "not looked at, for the reason that the note gives",
}
"""Status of an answer → what it says about the step."""


@dataclass(frozen=True)
class Change:
    """One thing that is different.

    Attributes
    ----------
    kind
        ``link``, ``device``, ``memory``, ``op``, ``split``, ``granularity``.
    text
        What is changed, for people.
    made
        The graph and the machine with the change; made when it is looked at, as there are many.
    """

    kind: str
    text: str
    made: Callable[[], tuple[OpGraph, Topology]] = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What a change brings.

    Attributes
    ----------
    status
        A key of `STATUSES`.
    makespan_s
        Step time with the change; None where none was found.
    lower_bound_s
        No step with the change is shorter; None where nothing is known.
    """

    kind: str
    text: str
    status: str
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    note: str = ""

    def gain(self, base_s: float) -> float | None:
        """(base − step) ÷ base: the share by which the step found with the change is shorter; below 0 it is longer."""
        return None if self.makespan_s is None or not base_s else 1 - self.makespan_s / base_s

    def most(self, base_s: float) -> float | None:
        """(base − bound) ÷ base: the gain that no plan with the change exceeds."""
        return None if self.lower_bound_s is None or not base_s else max(0.0, 1 - self.lower_bound_s / base_s)

    def to_dict(self, base_s: float) -> dict[str, Any]:
        """As in ``dlplacer explain --json``."""
        return {
            "kind": self.kind,
            "change": self.text,
            "status": self.status,
            "makespan_s": self.makespan_s,
            "lower_bound_s": self.lower_bound_s,
            "gain": self.gain(base_s),
            "most_gain": self.most(base_s),
            "note": self.note,
        }
