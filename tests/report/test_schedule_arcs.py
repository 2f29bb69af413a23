"""Slack and waits, against hand-computed schedules and against schedules replayed with one op delayed."""

import pytest
from report.page.long_plans import long_plan, replayed
from report.plot.plans import diamond, plan_of, sent, through_a_router

from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.report.critical_path import INPUT, LINK, PRODUCER, TRANSFER, ScheduleArcs, critical_path


def slack_of(plan: Plan) -> dict[str, float]:
    arcs = ScheduleArcs(plan)
    return {entry.op: arcs.slack_s[event] for event, entry in enumerate(plan.ops)}


def waits_of(plan: Plan) -> dict[str, tuple[str, int]]:
    """Op → what it waited for: an op, or a tensor, and why."""
    arcs = ScheduleArcs(plan)
    names = [entry.op for entry in plan.ops] + [part.tensor for part in plan.transfers for _ in part.segments]
    found = {}
    for event, arc in enumerate(arcs.latest_before[: len(plan.ops)]):
        if arc is not None:
            found[names[event]] = (names[arc.before], arc.why)
    return found


def test_slack_of_the_diamond() -> None:
    # z ends at 3, and the next on its device and its reader is w, which starts at 10; all else is on the path to 11.
    assert slack_of(diamond()) == {"p": 0, "x": 0, "z": 7, "y": 0, "w": 0}


def test_waits_of_the_diamond() -> None:
    assert waits_of(diamond()) == {"x": ("p", INPUT), "z": ("x", INPUT), "y": ("x.0", TRANSFER), "w": ("y.0", TRANSFER)}


@pytest.mark.parametrize(("contention", "why", "slack_s"), [("link", LINK, 0.0), ("none", PRODUCER, 1.0)])
def test_a_transfer_waits_for_its_link(contention: str, why: int, slack_s: float) -> None:
    # u.0 travels 1–4; v.0 is ready at 2, and may go at once only where there is no contention: then it ends at 5, and
    # u.0, which ends at 4, has a second to spare until w starts at 5.
    begin_s = 4.0 if contention == "link" else 2.0
    plan = plan_of(
        [Op("u", "k", 1.0), Op("v", "k", 1.0), Op("w", "k", 1.0)],
        [Edge("u", "w", 4, tensor="u.0"), Edge("v", "w", 4, tensor="v.0")],
        {"u": ("a", 0.0, 1.0), "v": ("a", 1.0, 2.0), "w": ("b", begin_s + 3, begin_s + 4)},
        [sent("u.0", "u", 4, ("a-b", 1.0, 4.0)), sent("v.0", "v", 4, ("a-b", begin_s, begin_s + 3))],
        options=Options(contention=contention, step="joint"),
    )
    arcs = ScheduleArcs(plan)
    arc = arcs.latest_before[arcs.first_segment[1]]
    assert arc is not None
    assert arc.why == why
    assert arcs.slack_s[arcs.first_segment[0]] == slack_s


@pytest.mark.parametrize("plan", [diamond(), through_a_router(), through_a_router("store-and-forward")])
def test_the_critical_path_has_no_slack(plan: Plan) -> None:
    arcs = ScheduleArcs(plan)
    on_path = {id(part.step) for part in critical_path(plan)}
    assert all(arcs.slack_s[event] == 0 for event, entry in enumerate(plan.ops) if id(entry) in on_path)


@pytest.mark.parametrize("seed", range(4))
def test_slack_is_what_an_op_can_take_longer(seed: int) -> None:
    """Replayed in the same order with one op longer by its slack, the step is as long; by more, it is longer."""
    plan = long_plan(60, devices=3, seed=seed)
    slack = slack_of(plan)
    assert max(slack.values()) > 0
    for op, slack_s in slack.items():
        assert replayed(plan, {op: slack_s}) == pytest.approx(plan.makespan_s, rel=1e-9)
        assert replayed(plan, {op: slack_s + 1e-6}) > plan.makespan_s + 0.9e-6
