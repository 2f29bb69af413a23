"""What would help: each change by an example computed by hand, all of them against solves of their own."""

from dataclasses import replace
from threading import Event

import pytest
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_problem

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.place import place
from dlplacer.planning.what_if.change import STATUSES, Answer
from dlplacer.planning.what_if.machine_changes import faster_links, more_devices, more_memory
from dlplacer.planning.what_if.op_changes import coarser, faster_ops, split_ops
from dlplacer.planning.what_if.what_would_help import WhatWouldHelp, what_would_help


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


def test_memory_where_it_keeps_ops_apart() -> None:
    sizes = {"a": 6, "b": 6, "c": 6}
    graph = make_graph({"a": 1, "b": 1, "c": 1}, [("a", "b", 40), ("b", "c", 40)], weight_bytes=sizes)
    topology = make_machine(2, memory=16, rate=10.0)
    found = asked(solved(graph, topology, options=Options(memory="sum")))
    # Two of the three weights fit on a device: 3 s of work and one transfer of 4 s. With 20 bytes all three do.
    assert found.base.makespan_s == 7
    assert answer(found, "25 % more memory").makespan_s == 3
    roomy = make_machine(2, memory=1000, rate=10.0)
    assert list(more_memory(solved(graph, roomy))) == []


def test_an_op_twice_as_fast_or_in_halves() -> None:
    graph = make_graph({"a": 8, "b": 2}, [("a", "b", 0)])
    found = asked(solved(graph, make_machine(2, rate=1.0)))
    assert found.base.makespan_s == 10
    assert answer(found, "op a twice as fast").makespan_s == 6
    assert answer(found, "op b twice as fast").makespan_s == 9
    assert answer(found, "op a in two halves").makespan_s == 6
    assert [one.kind for one in found.answers if one.kind == "split"] == ["split"] * 2


def test_halves_pay_for_what_they_send() -> None:
    ops = (Op("a", "k", 2.0), Op("b", "k", 8.0, output_bytes=4), Op("c", "k", 1.0))
    plan = solved(OpGraph(ops, (Edge("a", "b", 1), Edge("b", "c", 4))), make_machine(2))
    (change,) = (change for change in split_ops(plan) if change.text == "op b in two halves")
    graph, topology = change.made()
    # a 2 s, half of b 4 s beside it, its 2 bytes in 2 s to the other device, where the other half has ended; c 1 s.
    assert solved(with_times(graph, topology), topology).makespan_s == 9
    assert sum(op.time_on("device") or 0 for op in graph.ops) == 11
    assert {edge.bytes for edge in graph.edges_into["b"]} == {2}


def test_a_device_behind_a_router_is_joined_there() -> None:
    devices = tuple(Device(f"d{i}", type="big" if i == 2 else "small") for i in range(3))
    links = tuple(Link(f"d{i}", "switch", 10.0 + i) for i in range(3))
    topology = Topology(devices, (Router("switch"),), links)
    plan = solved(make_graph({"a": 1, "b": 1}, [("a", "b", 1)]), topology)
    changes = {change.text: change.made()[1] for change in more_devices(plan)}
    assert set(changes) == {"one more small, joined as d1 is", "one more big, joined as d2 is"}
    grown = changes["one more big, joined as d2 is"]
    assert [device.type for device in grown.devices] == ["small", "small", "big", "big"]
    assert [(link.source, link.target, link.bytes_per_s) for link in grown.links[3:]] == [("d2+1", "switch", 12.0)]


def test_nothing_is_sent_so_no_link_helps() -> None:
    plan = solved(make_graph({"a": 1, "b": 1}), make_machine(2))
    assert list(faster_links(plan)) == []


def test_an_optimum_that_the_bound_closes_is_not_solved_again() -> None:
    """On one device all is work: memory, links and other devices are out; an op twice as fast is not."""
    found = asked(solved(make_graph({"a": 3, "b": 1}, [("a", "b", 1)]), make_machine(1)))
    assert {one.kind for one in found.answers} == {"op", "split"}
    halves = answer(found, "op a in two halves")
    assert (halves.status, halves.makespan_s, halves.most(4)) == ("no gain", 4, 0)
    assert answer(found, "op a twice as fast").makespan_s == 2.5


def test_every_answer_is_the_optimum_of_its_own_problem() -> None:
    """Random problems with a budget that suffices: gains are those of cold solves, bounds meet them."""
    compared = 0
    for seed in range(0, 60, 5):
        graph, topology = random_problem(seed)
        try:
            plan = solved(graph, topology, options=Options.paper())
        except (InputError, InfeasibleError):
            continue
        made = {
            change.text: change.made()
            for changes in (faster_links, more_devices, more_memory, faster_ops, split_ops, coarser)
            for change in changes(plan)
        }
        for one in asked(plan, 600.0).answers:
            cold = solved(*made[one.text], options=Options.paper())
            assert one.status in ("solved", "no gain"), one
            assert one.makespan_s is not None
            assert one.lower_bound_s is not None
            assert one.lower_bound_s <= cold.makespan_s * (1 + 1e-9), (seed, one)
            if one.status == "solved":
                assert one.makespan_s == pytest.approx(min(cold.makespan_s, plan.makespan_s)), (seed, one)
            else:
                assert cold.makespan_s >= plan.makespan_s * 0.997, (seed, one)
            compared += 1
    assert compared > 30, compared


def test_a_plan_that_search_improves_is_told_and_replaced() -> None:
    graph, topology = make_graph({"a": 2, "b": 2}), make_machine(2)
    bad = solved(graph, topology, pins={"a": "d0", "b": "d0"})
    free = replace(bad, graph=graph, status="feasible", lower_bound_s=0.0, gap=1.0)
    assert violations(free) == ()
    found = asked(free)
    assert (found.given_s, found.base.makespan_s) == (4, 2)


def test_without_time_nothing_is_tried_and_said_so() -> None:
    plan = solved(make_graph({"a": 2, "b": 2, "c": 2}), make_machine(2))
    stop = Event()
    stop.set()
    found = what_would_help(plan, 60.0, workers=1, stop=stop)
    assert {one.status for one in found.answers} == {"not tried"}
    assert all("raise --budget" in one.note for one in found.answers)
    with pytest.raises(InputError, match="budget is 0 s"):
        what_would_help(plan, 0.0)


def test_training_steps_are_compared_with_pipelines_and_data_parallelism() -> None:
    ops = []
    edges = []
    for layer in range(3):
        weight = f"w{layer}"
        ops += [
            Op(weight, "parameter", 0.0, weight_bytes=4, gradient_bytes=4, phase="forward", colocate=weight),
            Op(f"f{layer}", "aten.mm", 2.0, phase="forward", output_bytes=1),
            Op(f"b{layer}", "aten.mm", 4.0, phase="backward"),
            Op(f"{weight}.grad", "gradient", 0.0, phase="backward", colocate=weight),
        ]
        edges += [Edge(weight, f"f{layer}", 4), Edge(weight, f"b{layer}", 4), Edge(f"b{layer}", f"{weight}.grad", 4)]
        if layer:
            edges += [Edge(f"f{layer - 1}", f"f{layer}", 1), Edge(f"b{layer}", f"b{layer - 1}", 1)]
    edges.append(Edge("f2", "b2", 1))
    plan = solved(OpGraph(tuple(ops), tuple(edges)), make_machine(2, rate=100.0))
    found = asked(plan)
    shared = answer(found, "data parallelism: the batch in 2 parts")
    # Half of 18 s of work, and gradients of 12 bytes that a ring sends over a link of 100 bytes per second.
    assert shared.status == "estimated"
    assert shared.lower_bound_s == pytest.approx(9.0)
    assert shared.makespan_s is not None
    assert 9.0 <= shared.makespan_s <= 9.2
    staged = answer(found, "a pipeline of micro-batches")
    assert staged.status == "estimated"
    assert staged.lower_bound_s == pytest.approx(9.0)
    assert staged.makespan_s is not None
    assert 9.0 <= staged.makespan_s < plan.makespan_s


def test_json_is_as_documented() -> None:
    found = asked(solved(make_graph({"a": 2, "b": 2, "c": 2}), make_machine(2)))
    value = found.to_dict()
    assert {"base_s", "base_lower_bound_s", "plan_s", "seconds", "changes"} == value.keys()
    assert found.to_frame()["gain"].tolist() == [change["gain"] for change in value["changes"]]
    for change in value["changes"]:
        assert {
            "kind",
            "change",
            "status",
            "makespan_s",
            "lower_bound_s",
            "gain",
            "most_gain",
            "note",
        } == change.keys()
        assert change["status"] in STATUSES
