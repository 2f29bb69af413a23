"""One broken rule, and the tolerance with which times are compared."""

from dataclasses import dataclass

from dlplacer.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a plan breaks: its short name and what is wrong, with the numbers."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def tolerance_s(plan: Plan) -> float:
    """1e-9 × the horizon: all ops at their slowest and all transfers, one after another."""
    types = plan.topology.device_types
    slowest = sum(max(op.time_on(device_type) or 0.0 for device_type in types) for op in plan.graph.ops)
    moved = sum(abs(transfer.end_s - transfer.start_s) for transfer in plan.transfers)
    return 1e-9 * (slowest + moved) + 1e-15
