"""HEFT with insertion."""

from solvers.helpers import broken_rules, make_graph, make_instance, make_machine

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.heuristics.list_rules import heft
from dlplacer.solvers.heuristics.orders import by_rank, upward_ranks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def _run(instance: Instance) -> Schedule:
    schedule = heft(instance, by_rank(instance, upward_ranks(instance)))
    assert schedule is not None
    assert not broken_rules(instance, schedule)
    return schedule


def test_upward_ranks_add_mean_duration_and_mean_delay() -> None:
    graph = make_graph({"a": 2, "b": {"x": 1, "y": 3}, "c": 5}, [("a", "b", 4), ("a", "c", 8), ("b", "c", 2)])
    topology = Topology((Device("d0", "x"), Device("d1", "y")), (), (Link("d0", "d1", 2.0),))
    # c: 5. b: (1 + 3) / 2 + 2 / 2 + 5 = 8. a: 2 + max(4 / 2 + 8, 8 / 2 + 5) = 12.
    assert upward_ranks(make_instance(graph, topology)) == [12, 8, 5]


def test_a_gap_is_filled() -> None:
    graph = make_graph({"s": 4, "x": 6, "y": 6, "f": 3}, [("s", "x", 0), ("s", "y", 0)])
    # s 0-4, x 4-10 on d0, y 4-10 on d1, and f (rank 3) into the gap 0-4 of d1.
    schedule = _run(make_instance(graph, make_machine(2)))
    assert schedule.makespan == 10
    assert schedule.start[3] == 0


def test_an_op_waits_for_a_device_that_ends_it_earlier() -> None:
    graph = make_graph({"a": {"x": 20, "y": 3}, "b": {"x": 9, "y": 2}})
    topology = Topology((Device("d0", "x"), Device("d1", "y")), (), (Link("d0", "d1", 1.0),))
    # a 0-3 on d1; b would end at 9 on d0, which is free, and ends at 5 behind a.
    schedule = _run(make_instance(graph, topology))
    assert (schedule.device, schedule.makespan) == ((1, 1), 5)
