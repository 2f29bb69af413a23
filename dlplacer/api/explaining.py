"""Reasons for a plan's step time and ways to change it: `explain`, `what_would_help`, `elsewhere`, `pinned`."""

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from dlplacer.api.parameters import checked
from dlplacer.api.solving import Pins, Together, pins_of, together_of
from dlplacer.api.subjects import PlanLike, plan_of, silent, whole_plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan

if TYPE_CHECKING:
    from dlplacer.check import Violation
    from dlplacer.planning.what_if.elsewhere import Elsewhere, PinnedPlan
    from dlplacer.planning.what_if.what_would_help import WhatWouldHelp
    from dlplacer.report.explanation import Explanation


@checked
def explain(plan: PlanLike, dispatch_s: float = 0.0) -> "Explanation":
    """The causes of a plan's step time: critical path, limit of its bound, idle devices, the largest transfers.

    Examples
    --------
    >>> import dlplacer as dp
    >>> found = dp.explain(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    >>> sorted(found.limits_s)
    ['critical path', 'work']
    >>> [share.device for share in found.devices]
    ['gpu0', 'gpu1']
    """
    from dlplacer.report.explanation import explain as explain_plan

    return explain_plan(whole_plan_of(plan), dispatch_s)


@checked
def what_would_help(
    plan: PlanLike,
    budget_s: float = 10.0,
    *,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[str, int, int], None] = silent,
    stop: Event | None = None,
) -> "WhatWouldHelp":
    """The step with one thing changed, for every change that may bring something, found by solving again.

    Looked at: links twice as fast, one more device of each type, a quarter more memory, each of the ten longest ops
    twice as fast or in two halves, other granularities, a pipeline, data parallelism.

    Examples
    --------
    >>> import dlplacer as dp
    >>> graph = dp.OpGraph([dp.Op("a", "mm", 2e-3), dp.Op("b", "mm", 1e-3)], [dp.Edge("a", "b", 64)])
    >>> found = dp.what_would_help(dp.place(graph, dp.Topology([dp.Device("d")])), budget_s=2)
    >>> len(found.answers) > 0
    True
    """
    from dlplacer.planning.what_if.what_would_help import what_would_help as ask

    given = _of_makespan(plan, "what_would_help")
    return ask(given, budget_s, seed=seed, workers=workers, on_progress=on_progress, stop=stop)


@checked
def elsewhere(
    plan: PlanLike, op: str, budget_s: float = 10.0, *, workers: int | None = None, stop: Event | None = None
) -> "tuple[Elsewhere, ...]":
    """The step time with an op on each of the other devices, which explains the placement of the op.

    Examples
    --------
    >>> import dlplacer as dp
    >>> machine = dp.Topology([dp.Device("d0"), dp.Device("d1", "slow")], links=[dp.Link("d0", "d1", 1e9)])
    >>> graph = dp.OpGraph([dp.Op("a", "mm", {"device": 1e-3, "slow": 3e-3})])
    >>> [found] = dp.elsewhere(dp.place(graph, machine), "a", budget_s=2)
    >>> found.device, found.makespan_s
    ('d1', 0.003)
    """
    from dlplacer.planning.what_if.elsewhere import elsewhere as moved

    given = _of_makespan(plan, "elsewhere")
    given.graph.op(op)
    if not budget_s > 0:
        raise InputError(f"budget_s is {budget_s}; it must be positive")
    return tuple(moved(given, op, budget_s, workers=workers, stop=stop))


@checked
def pinned(
    plan: PlanLike,
    pins: Pins = (),
    colocate: Together = (),
    budget_s: float = 10.0,
    *,
    workers: int | None = None,
    stop: Event | None = None,
) -> "PinnedPlan":
    """The plan of the same problem with ops pinned or held together, and the ops that move.

    Examples
    --------
    >>> import dlplacer as dp
    >>> machine = dp.Topology([dp.Device("d0"), dp.Device("d1", "slow")], links=[dp.Link("d0", "d1", 1e9)])
    >>> graph = dp.OpGraph([dp.Op("a", "mm", {"device": 1e-3, "slow": 3e-3})])
    >>> dp.pinned(dp.place(graph, machine), {"a": "d1"}, budget_s=2).moved
    {'a': ('d0', 'd1')}
    """
    from dlplacer.planning.what_if.elsewhere import pinned_plan

    given = _of_makespan(plan, "pinned")
    pairs, sets = pins_of(pins, given.topology), together_of(colocate)
    return pinned_plan(given, pairs, sets, max(budget_s, 0.1), workers=workers, stop=stop)


def _of_makespan(plan: PlanLike, asked: str) -> Plan:
    """The plan, which keeps every rule, and whose objective is the makespan."""
    found = plan_of(plan, keeps_rules=True)
    found.options.require_makespan(asked)
    return found


@checked
def check_plan(plan: PlanLike) -> None:
    """Return if the plan keeps every rule of the problem.

    Raises
    ------
    CheckError
        With every violation.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.check_plan(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    """
    from dlplacer import check

    check.check_plan(plan_of(plan))


@checked
def violations(plan: PlanLike) -> "tuple[Violation, ...]":
    """Every rule of the problem that a plan breaks, with the numbers; empty if the plan is valid.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.violations(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    ()
    """
    from dlplacer import check

    return check.violations(plan_of(plan))
