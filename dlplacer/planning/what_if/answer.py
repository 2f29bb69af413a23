"""The step with a change: a bound first, then the plan of a solve that begins with the plan at hand."""

from dataclasses import dataclass
from threading import Event
from typing import Any

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.planning.assemble import contradicts
from dlplacer.planning.place import place
from dlplacer.problem.problem import Problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.instance.instance import build_instance

_LEAST_S = 0.05


@dataclass(frozen=True)
class Answer:
    """The effect of a change on the step time.

    Attributes
    ----------
    kind, text
        As in `Change`, or ``pipeline`` and ``data parallel``.
    status
        ``solved``: solved again, beginning with the plan. ``kept``: the plan as it is, or its placement and order under
        the change; solving again may find more. ``estimated``: predicted by the model of pipelines or of data
        parallelism. ``no gain``: its bound shows that it gains next to nothing. ``not tried``: see the note.
    makespan_s
        Step time with the change; None if none was found.
    lower_bound_s
        No step with the change is shorter; None if no bound is known.
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
        figures = {"makespan_s": self.makespan_s, "lower_bound_s": self.lower_bound_s}
        gains = {"gain": self.gain(base_s), "most_gain": self.most(base_s)}
        return {"kind": self.kind, "change": self.text, "status": self.status, **figures, **gains, "note": self.note}


@dataclass(frozen=True)
class Solving:
    """The arguments that all solves of a question share; a solve begins with the plan `warm`."""

    warm: Plan
    seed: int = 0
    workers: int | None = None
    stop: Event | None = None

    def place(self, seconds: float, graph: OpGraph | None = None, topology: Topology | None = None) -> Plan:
        """The plan of a solve, of the plan's own graph and machine unless others are given; raises as `place` does."""
        plan = self.warm
        return place(
            graph or plan.graph,
            topology or plan.topology,
            plan.options,
            time_limit_s=max(seconds, _LEAST_S),
            seed=self.seed,
            workers=self.workers,
            stop=self.stop,
            warm_start=plan,
        ).plan


def bound_of(problem: Problem, seconds: float) -> float:
    """A lower bound of a problem in seconds, spending about the given time."""
    return float(lower_bounds(build_instance(problem), seconds).makespan * problem.tick_s)


def require_consistent(what: str, bound_s: float, makespan_s: float | None) -> None:
    """Raise InternalError if a bound is above the step of a plan with this change."""
    if makespan_s is not None and contradicts(bound_s, makespan_s):
        raise InternalError(
            f"with {what} the lower bound is {bound_s:.9g} s, above the {makespan_s:.9g} s of a plan; please report it"
        )
