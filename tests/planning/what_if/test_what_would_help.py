"""What would help: each change by an example computed by hand, all of them against solves of their own."""

import pytest
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_problem

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.planning.place import place
from dlplacer.planning.what_if import Answer, WhatWouldHelp, changes, what_would_help


def solved(graph: OpGraph, topology: Topology, **more: object) -> Plan:
    return place(graph, topology, time_limit_s=60, workers=1, **more).plan  # type: ignore[arg-type]


def asked(plan: Plan, budget_s: float = 60.0) -> WhatWouldHelp:
    return what_would_help(plan, budget_s, workers=1)


def answer(found: WhatWouldHelp, text: str) -> Answer:
    (one,) = (one for one in found.answers if text in one.text)
    return one


def test_a_third_device_for_three_ops() -> None:
    found = asked(solved(make_graph({"a": 2, "b": 2, "c": 2}), make_machine(2)))
    assert found.base.makespan_s == 4
    more = answer(found, "one more device, joined as d0 is")
    # Three ops of 2 s on three devices, each of which is as long as one of them.
    assert (more.status, more.makespan_s, more.lower_bound_s) == ("solved", 2, 2)
    assert more.gain(4) == more.most(4) == 0.5
    assert found.answers[0].makespan_s == 2


def test_a_link_twice_as_fast() -> None:
    graph = make_graph({"a": 1, "b": 4, "c": 4, "d": 1}, [("a", "b", 2), ("a", "c", 2), ("b", "d", 2), ("c", "d", 2)])
    found = asked(solved(graph, make_machine(2)))
    # a 1 s, its tensor 2 s to the other device, c 4 s, d 1 s there, where b's tensor has come; then the link takes 1 s.
    assert found.base.makespan_s == 8
    link = answer(found, "link d0 – d1 twice as fast")
    assert (link.status, link.makespan_s, link.lower_bound_s) == ("solved", 7, 7)


def test_every_answer_is_the_optimum_of_its_own_problem() -> None:
    """Random problems with a budget that suffices: gains are those of cold solves, bounds meet them."""
    compared = 0
    for seed in range(0, 30, 5):
        graph, topology = random_problem(seed)
        try:
            plan = solved(graph, topology, options=Options.paper())
        except (InputError, InfeasibleError):
            continue
        made = {change.text: change.made() for change in changes(plan)}
        for one in asked(plan, 600.0).answers:
            cold = solved(*made[one.text], options=Options.paper())
            assert one.status == "solved", one
            assert one.lower_bound_s is not None
            assert one.lower_bound_s <= cold.makespan_s * (1 + 1e-9), (seed, one)
            assert one.makespan_s == pytest.approx(min(cold.makespan_s, plan.makespan_s)), (seed, one)
            compared += 1
    assert compared > 10, compared
