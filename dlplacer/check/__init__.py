"""The specification: which plans are valid. It shares no code with the solvers.

Every rule is one function of a plan; `violations` calls them all. The equation numbers are the paper's.
"""

from collections.abc import Callable, Iterator

from dlplacer.check import arithmetic, issues, loads, memory, placement, routing, shortest, timing
from dlplacer.check.loads import resource_loads
from dlplacer.check.memory import LiveTensor, live_bytes, live_tensors, resident_bytes
from dlplacer.check.violation import Violation
from dlplacer.core.errors import CheckError
from dlplacer.core.plan import Plan

Rule = Callable[[Plan], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    placement.every_op_once,
    placement.allowed_devices,
    placement.colocation,
    placement.pinned,
    placement.kept_together,
    timing.durations,
    timing.one_op_at_a_time,
    timing.barrier_at_the_loss,
    routing.transfers_needed,
    routing.contiguous_routes,
    shortest.shortest_routes,
    routing.transfer_durations,
    routing.one_transfer_at_a_time,
    timing.precedence,
    timing.order,
    issues.issued_ahead,
    issues.issued_inside,
    memory.peaks,
    arithmetic.makespan,
    loads.period,
    arithmetic.bound_and_gap,
)
"""In the order in which they are reported. The first five make the others meaningful."""

_STRUCTURAL = RULES[:5]


def violations(plan: Plan) -> tuple[Violation, ...]:
    """Every rule that the plan breaks, with the numbers; empty if the plan is valid.

    Times are compared with a tolerance of 1e-9 × the time in which all ops and transfers run one after another.
    """
    found = tuple(_broken(plan, _STRUCTURAL))
    return found or tuple(_broken(plan, RULES[len(_STRUCTURAL) :]))


def check_plan(plan: Plan) -> None:
    """Return if the plan is valid.

    Raises
    ------
    CheckError
        With every violation.
    """
    found = violations(plan)
    if found:
        raise CheckError([str(violation) for violation in found])


def _broken(plan: Plan, rules: tuple[Rule, ...]) -> Iterator[Violation]:
    for rule in rules:
        yield from rule(plan)


__all__ = [
    "RULES",
    "LiveTensor",
    "Violation",
    "check_plan",
    "live_bytes",
    "live_tensors",
    "resident_bytes",
    "resource_loads",
    "violations",
]
