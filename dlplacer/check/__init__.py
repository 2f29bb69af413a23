"""The specification of a valid plan, which shares no code with the solvers.

Every rule is one function of a plan; `violations` calls them all. Equation numbers are those of Pal et al. 2019.
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
"""The rules in the order of their reports. Later rules make sense only if the first five, on placement, hold."""

_STRUCTURAL = RULES[:5]


def violations(plan: Plan) -> tuple[Violation, ...]:
    """The violations of all rules; empty for a valid plan. If the placement is invalid, only its violations are listed.

    The tolerance of times is 1e-9 × the time of all ops, transfers and issues in series: `Plan.tolerance_s`.
    """
    found = tuple(_broken(plan, _STRUCTURAL))
    return found or tuple(_broken(plan, RULES[len(_STRUCTURAL) :]))


def check_plan(plan: Plan) -> None:
    """Raise an error unless the plan is valid.

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
