"""The critical path: hand-computed chains, one for every reason to wait."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report.plot.plans import diamond, pair, plan_of, sent, waiting_at_a_relay

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.place import place
from dlplacer.report.critical_path import ScheduleArcs, critical_path
from dlplacer.report.explanation import explain


def names(plan: Plan) -> list[str]:
    steps = [part.step for part in critical_path(plan)]
    return [step.op if isinstance(step, ScheduledOp) else f"{step.tensor}→{step.target}" for step in steps]


def test_producers_and_transfers() -> None:
    # w waits for y's transfer (8–10), y for x's (2–5); z ends at 3 and holds up nobody.
    plan = diamond()
    assert not violations(plan)
    assert names(plan) == ["x", "x.0→b", "y", "y.0→a", "w"]


@pytest.mark.parametrize(("step", "expected"), [("autograd", ["slow", "back"]), ("joint", ["back"])])
def test_the_barrier_at_the_loss(step: str, expected: list[str]) -> None:
    # back reads fast (0–2), but starts when slow, on the other device, ends at 5; without the barrier it is just late.
    ops = [Op("fast", "k", 2.0, phase="forward"), Op("slow", "k", 5.0), Op("back", "k", 1.0, phase="backward")]
    times = {"fast": ("a", 0.0, 2.0), "slow": ("b", 0.0, 5.0), "back": ("a", 5.0, 6.0)}
    plan = plan_of(ops, [Edge("fast", "back", 0)], times, options=replace(Options.paper(), step=step))
    assert names(plan) == expected


def test_a_transfer_that_waits_on_its_way_is_on_the_path_from_there() -> None:
    # The path is s (0–3), s.0 (3–6), t from 6 on, v (9–10); t as a whole takes 8 s.
    plan = waiting_at_a_relay()
    assert names(plan) == ["s", "s.0→b", "t→b", "v"]
    assert [(part.begin_s, part.end_s) for part in critical_path(plan)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    found = explain(plan)
    assert (found.path_ops_s, found.path_transfers_s, found.path_waits_s) == (4, 6, 0)


@pytest.mark.parametrize(("dispatch_s", "expected"), [(None, ["v"]), (0.5, ["u", "v"])])
def test_where_processes_delay_ops_the_path_leads_on_over_the_delay(
    dispatch_s: float | None, expected: list[str]
) -> None:
    # u ends at 2 and a hands its tensor over to b for 0.5 s; then it runs v. Before w, b takes the tensor for as long.
    devices = tuple(Device(name, "T", dispatch_s=dispatch_s, process=f"p{name}") for name in "ab")
    plan = plan_of(
        [Op("u", "k", 2.0), Op("v", "k", 3.0), Op("w", "k", 1.0)],
        [Edge("u", "w", 2, tensor="u.0")],
        {"u": ("a", 0.0, 2.0), "v": ("a", 2.5, 5.5), "w": ("b", 4.5, 5.5)},
        [sent("u.0", "u", 2, ("a-b", 2.0, 4.0))],
        replace(pair(), devices=devices),
        Options(),
    )
    assert names(plan) == expected
    found = explain(plan)
    assert found.path_ops_s + found.path_waits_s == plan.makespan_s
    assert found.path_waits_s == (2.5 if dispatch_s is None else 0.5)


SIZES = st.integers(min_value=0, max_value=4)


@st.composite
def problems(draw: st.DrawFn) -> tuple[OpGraph, Topology]:
    """Devices in a star, or in a row whose inner nodes relay or forward."""
    count = draw(st.integers(min_value=1, max_value=8))
    ops = tuple(Op(f"k{position}", "k", float(draw(SIZES))) for position in range(count))
    pairs = [(low, high) for high in range(count) for low in range(high)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = tuple(Edge(f"k{low}", f"k{high}", draw(SIZES)) for low, high in chosen)
    names = "abcd"[: draw(st.integers(min_value=1, max_value=4))]
    inner = draw(st.sets(st.sampled_from("bc"))) & set(names)
    devices = tuple(Device(name, "T") for name in names if name not in inner)
    sources = names if draw(st.booleans()) else "a" * len(names)
    links = tuple(Link(one, name, 1.0, float(draw(SIZES))) for one, name in zip(sources, names[1:], strict=False))
    return OpGraph(ops, edges), Topology(devices, tuple(Router(name) for name in sorted(inner)), links)


@settings(max_examples=60)
@given(problems(), st.sampled_from(["cut-through", "store-and-forward"]))
def test_a_path_without_slack_covers_the_step(problem: tuple[OpGraph, Topology], delay: str) -> None:
    """A plan whose ops start as early as they can has an unbroken chain from 0 to its makespan."""
    plan = place(*problem, Options(delay=delay), method="list", workers=1).plan
    parts = critical_path(plan)
    slack = Fraction(plan.tolerance_s)
    assert abs(parts[0].begin_s) <= slack
    assert parts[-1].end_s == plan.makespan_s
    assert all(before.end_s == after.begin_s for before, after in pairwise(parts))
    for part in parts:
        assert part.step.start_s - slack <= part.begin_s <= part.end_s <= part.step.end_s + slack
        if isinstance(part.step, ScheduledOp):
            assert part.time_s == pytest.approx(part.step.end_s - part.step.start_s, abs=float(slack))
    found = explain(plan)
    total_s = found.path_ops_s + found.path_transfers_s + found.path_waits_s
    assert total_s == pytest.approx(plan.makespan_s, abs=1e-9)
    assert sum(share.on_path_s for share in found.devices) == pytest.approx(found.path_ops_s, abs=1e-9)


@settings(max_examples=60)
@given(problems(), st.booleans(), st.booleans())
def test_a_path_leads_from_the_first_op_of_a_process_to_the_last(
    problem: tuple[OpGraph, Topology], is_asynchronous: bool, is_shared: bool
) -> None:
    """Nothing that takes time precedes the first step of the path, however long issues and hand-overs delay others."""
    graph, topology = problem
    devices = tuple(
        replace(one, dispatch_s=0.25, asynchronous=is_asynchronous, process="p" if is_shared else one.id)
        for one in topology.devices
    )
    plan = place(graph, replace(topology, devices=devices), method="list", workers=1).plan
    parts = critical_path(plan)
    assert all(before.end_s <= after.begin_s for before, after in pairwise(parts))
    first, arcs = parts[0].step, ScheduleArcs(plan)
    ended = [arcs.spans[arc.before][1] for arc in arcs.arcs if arcs.steps[arc.after] is first]
    assert max(ended, default=0.0) <= plan.tolerance_s
    found = explain(plan)
    total_s = found.path_ops_s + found.path_transfers_s + found.path_waits_s
    assert total_s == pytest.approx(plan.makespan_s, abs=1e-9)
