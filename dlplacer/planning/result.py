"""The result of a solve: status, plan, lower bound and gap."""

from collections.abc import Mapping
from dataclasses import field
from os import PathLike
from pathlib import Path
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.plan import Plan
from dlplacer.core.record import Record, Seconds, record
from dlplacer.core.units import format_seconds
from dlplacer.planning.tables import schedule

FITS_NONE = "fits on no single device"
"""Text shown instead of a speedup if the graph fits on no single device."""


@record(frozen=True, repr=False)
class Result(Shown, Record):
    """The result of solving one problem; `save` writes its plan.

    >>> dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft")
    <Result: feasible, ... ms, gap ... %, speedup ...x over the best single device; method heft, ... s>

    Attributes
    ----------
    plan
        The best plan found; it has passed `check`.
    single_device_s
        Seconds of the graph on the best single device, both makespan and period; None if the graph fits on none.
    bounds
        Simple lower bounds in seconds: ``critical_path_s``, ``area_s``. The plan's own bound is at least as good.
    """

    plan: Plan
    single_device_s: Seconds | None
    bounds: Mapping[str, float] = field(default_factory=dict)

    table = property(lambda self: schedule(self.plan))

    def __repr__(self) -> str:
        plan, faster = self.plan, self.speedup
        gain = "" if faster is None else f", speedup {faster:.3f}x over the best single device"
        value = f"{plan.objective.label} {format_seconds(plan.value_s)}"
        return (
            f"<Result: {plan.status}, {value}, gap {100 * plan.gap:.2f} %{gain}; "
            f"method {plan.method}, {plan.solve_s:.1f} s>"
        )

    @property
    def status(self) -> str:
        """``optimal`` or ``feasible``."""
        return self.plan.status

    @property
    def speedup(self) -> float | None:
        """`single_device_s` ÷ the objective; None if the graph fits on no single device or takes no time."""
        if self.single_device_s is None or self.plan.value_s == 0:
            return None
        return self.single_device_s / self.plan.value_s

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the plan atomically as a plan file, and return the path; raises InputError if that fails."""
        return self.plan.save(path)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer solve --json`` prints: times in seconds, gap and speedup as ratios."""
        plan = self.plan
        times = {name: getattr(plan, name) for name in ("makespan_s", "lower_bound_s", "gap", "rounding_s", "solve_s")}
        value = {plan.objective.figure: plan.value_s}
        told = {"status": plan.status, "objective": plan.options.objective, **value, **times, "speedup": self.speedup}
        return {**told, "method": plan.method, "bounds": dict(self.bounds)}
