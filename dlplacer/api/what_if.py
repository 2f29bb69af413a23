"""What would make a step shorter, and what it would take with an op elsewhere: `what_would_help`, `elsewhere`."""

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from dlplacer.api.subjects import PlanLike, plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, expect_call, expect_number, expect_text, expect_whole

if TYPE_CHECKING:
    from dlplacer.planning.what_if.elsewhere import Elsewhere
    from dlplacer.planning.what_if.what_would_help import WhatWouldHelp


def what_would_help(
    plan: PlanLike,
    budget_s: float = 60.0,
    *,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
    stop: Event | None = None,
) -> "WhatWouldHelp":
    """What the step would take with one thing changed, for every change that may bring something, by solving again.

    Looked at: links twice as fast, one more device of each type, a quarter more memory, each of the ten longest ops
    twice as fast or in two halves, other granularities, a pipeline, data parallelism.

    Parameters
    ----------
    plan
        A `Plan`, a `Result`, or the path of a plan file.
    budget_s
        Seconds for everything.
    on_progress
        Called before each look and each solve, with what, how many are done, and of how many.
    seed, workers, stop
        As for `dlplacer.place`.

    Raises
    ------
    InputError
        If an argument cannot be meant.

    Examples
    --------
    >>> import dlplacer as dp
    >>> graph = dp.OpGraph([dp.Op("a", "mm", 2e-3), dp.Op("b", "mm", 1e-3)], [dp.Edge("a", "b", 64)])
    >>> found = dp.what_would_help(dp.place(graph, dp.Topology([dp.Device("d")])), budget_s=2)
    >>> len(found.answers) > 0
    True
    """
    from dlplacer.planning.what_if.what_would_help import what_would_help as ask

    expect_number("", budget_s=budget_s)
    expect_whole("", seed=seed)
    expect_whole("", optional=True, workers=workers)
    expect_call("", optional=True, on_progress=on_progress)
    if stop is not None:
        expect("", "stop", stop, Event, "a threading.Event or None")
    return ask(
        plan_of(plan),
        budget_s,
        seed=seed,
        workers=workers,
        on_progress=on_progress or (lambda what, done, total: None),
        stop=stop,
    )


def elsewhere(
    plan: PlanLike, op: str, budget_s: float = 10.0, *, workers: int | None = None, stop: Event | None = None
) -> "tuple[Elsewhere, ...]":
    """What the step would take with an op on each of the other devices: why it is where it is.

    Parameters
    ----------
    plan
        A `Plan`, a `Result`, or the path of a plan file.
    op
        Id of an op of the plan.
    budget_s
        Seconds for all devices together.
    workers, stop
        As for `dlplacer.place`.

    Raises
    ------
    InputError
        If the plan has no such op, or an argument cannot be meant.

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

    expect_text("", op=op)
    expect_number("", budget_s=budget_s)
    expect_whole("", optional=True, workers=workers)
    if stop is not None:
        expect("", "stop", stop, Event, "a threading.Event or None")
    given = plan_of(plan)
    given.graph.op(op)
    if not budget_s > 0:
        raise InputError(f"budget_s is {budget_s}; it must be positive")
    return tuple(moved(given, op, budget_s, workers=workers, stop=stop))
