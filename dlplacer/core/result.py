"""What a solve returns: status, plan, lower bound and gap."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlplacer.core.plan import Plan


@dataclass(frozen=True)
class Result:
    """The answer to one problem.

    Attributes
    ----------
    plan
        The best plan found; it has passed `check`.
    single_device_s
        Makespan of the whole graph on the best single device; None where it fits on none.
    bounds
        Simple lower bounds in seconds: ``critical_path_s``, ``area_s``. The plan's own bound is at least as good.
    """

    plan: Plan
    single_device_s: float | None
    bounds: Mapping[str, float] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """``optimal`` or ``feasible``."""
        return self.plan.status

    @property
    def speedup(self) -> float | None:
        """Best single device ÷ makespan; None where the graph fits on no single device or takes no time."""
        if self.single_device_s is None or self.plan.makespan_s == 0:
            return None
        return self.single_device_s / self.plan.makespan_s

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer solve --json`` prints: times in seconds, gap and speedup as ratios."""
        plan = self.plan
        return {
            "status": plan.status,
            "makespan_s": plan.makespan_s,
            "lower_bound_s": plan.lower_bound_s,
            "gap": plan.gap,
            "rounding_s": plan.rounding_s,
            "solve_s": plan.solve_s,
            "speedup": self.speedup,
            "method": plan.method,
            "bounds": dict(self.bounds),
        }
