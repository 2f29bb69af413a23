"""What each heuristic is named for: small examples worked out by hand."""

import importlib.util
from itertools import pairwise

import pytest
from solvers.helpers import broken_rules, make_graph, make_instance, make_machine

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.heuristics.device_map import m_topo
from dlplacer.solvers.heuristics.list_rules import by_rank, construct, heft, list_schedule, upward_ranks
from dlplacer.solvers.heuristics.min_cut import min_cut
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed")


_RULES = {"list": list_schedule, "heft": heft, "min-cut": min_cut, "m-topo": m_topo}


def _run(method: str, instance: Instance) -> Schedule:
    schedule = _RULES[method](instance, by_rank(instance, upward_ranks(instance)), None)
    assert schedule is not None
    assert not broken_rules(instance, schedule)
    return schedule


@needs_metis
def test_min_cut_cuts_the_light_edge() -> None:
    graph = make_graph({"a": 2, "b": 2, "c": 2, "d": 2}, [("a", "b", 9), ("b", "c", 1), ("c", "d", 9)])
    # a, b | c, d: 0-4, then c at 4+1: 5-7, d 7-9.
    found = _run("min-cut", make_instance(graph, make_machine(2)))
    assert found.device[0] == found.device[1] != found.device[2] == found.device[3]
    assert found.makespan == 9


def test_m_topo_fills_devices_in_turn() -> None:
    ops = [
        Op(name, "test", time_s=1.0, weight_bytes=size) for name, size in zip("abcdef", (4, 2, 3, 2, 3, 1), strict=True)
    ]
    graph = OpGraph(tuple(ops), tuple(Edge(a, b, 1) for a, b in pairwise("abcdef")))
    # Footprints 15: a cap of 15 // 3 + 4 = 9. a, b and c fill the first device, 9; d, e and f the second, 6.
    assert _run("m-topo", make_instance(graph, make_machine(3))).device == (0, 0, 0, 1, 1, 1)
    # Memory for 7 lowers it: a and b take 6, c and d 5, e and f 4.
    small = make_machine(3, memory=7)
    assert _run("m-topo", make_instance(graph, small)).device == (0, 0, 1, 1, 2, 2)


def test_m_topo_shares_time_where_nothing_has_a_size() -> None:
    graph = make_graph({"a": 3, "b": 1, "c": 2, "d": 2}, [("a", "b", 0), ("b", "c", 0), ("c", "d", 0)])
    # A cap of 8 // 2 + 3 = 7: a, b and c, then d.
    assert _run("m-topo", make_instance(graph, make_machine(2))).device == (0, 0, 0, 1)


def test_upward_ranks_add_mean_duration_and_mean_delay() -> None:
    graph = make_graph({"a": 2, "b": {"x": 1, "y": 3}, "c": 5}, [("a", "b", 4), ("a", "c", 8), ("b", "c", 2)])
    topology = Topology((Device("d0", "x"), Device("d1", "y")), (), (Link("d0", "d1", 2.0),))
    # c: 5. b: (1 + 3) / 2 + 2 / 2 + 5 = 8. a: 2 + max(4 / 2 + 8, 8 / 2 + 5) = 12.
    assert upward_ranks(make_instance(graph, topology)) == [12, 8, 5]


def test_a_gap_is_filled() -> None:
    graph = make_graph({"s": 4, "x": 6, "y": 6, "f": 3}, [("s", "x", 0), ("s", "y", 0)])
    # s 0-4, x 4-10 on d0, y 4-10 on d1, and f (rank 3) into the gap 0-4 of d1.
    schedule = _run("heft", make_instance(graph, make_machine(2)))
    assert schedule.makespan == 10
    assert schedule.start[3] == 0


def test_an_op_waits_for_a_device_that_ends_it_earlier() -> None:
    graph = make_graph({"a": {"x": 20, "y": 3}, "b": {"x": 9, "y": 2}})
    topology = Topology((Device("d0", "x"), Device("d1", "y")), (), (Link("d0", "d1", 1.0),))
    # a 0-3 on d1; b would end at 9 on d0, which is free, and ends at 5 behind a.
    schedule = _run("heft", make_instance(graph, topology))
    assert (schedule.device, schedule.makespan) == ((1, 1), 5)


def test_work_conserving_order_beats_heft() -> None:
    graph = make_graph({"s": 4, "x": 6, "y": 6, "f": 5}, [("s", "x", 0), ("s", "y", 0)])
    instance = make_instance(graph, make_machine(2))
    # HEFT takes s, x, y, f: s 0-4 and x 4-10 on d0, y 4-10 on d1; the gap 0-4 on d1 is too short for f: 10-15.
    assert _run("heft", instance).makespan == 15
    # A free device never waits: s 0-4 and x 4-10 on d0, f 0-5 and y 5-11 on d1.
    assert _run("list", instance).makespan == 11


def test_packing_helps_where_greed_runs_out_of_memory() -> None:
    sizes = {"a": 3, "b": 2, "c": 2, "d": 2, "e": 3}
    graph = make_graph(dict.fromkeys(sizes, 1), output_bytes=sizes)
    instance = make_instance(graph, make_machine(2, memory=6))
    greedy = list_schedule(instance, by_rank(instance, [1, 5, 4, 3, 2]))
    assert greedy is None
    found = construct(instance, list_schedule, [0, 1, 1, 1, 0])
    assert found is not None
    assert not broken_rules(instance, found)
