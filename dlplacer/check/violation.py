"""One broken rule, and the tolerance with which times are compared."""

from dataclasses import dataclass

from dlplacer.plan import Plan


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a plan breaks: its short name and what is wrong, with the numbers."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def tolerance_s(plan: Plan) -> float:
    """1e-9 × the horizon: all ops at their slowest and all transfers, one after another."""
    slowest = (_slowest(op.time_s) for op in plan.graph.ops)
    moved = (transfer.end_s - transfer.start_s for transfer in plan.transfers)
    return 1e-9 * (sum(slowest) + sum(abs(duration) for duration in moved)) + 1e-15


def _slowest(time_s: object) -> float:
    if isinstance(time_s, (int, float)):
        return time_s
    return max(time_s.values(), default=0.0) if isinstance(time_s, dict) else 0.0
