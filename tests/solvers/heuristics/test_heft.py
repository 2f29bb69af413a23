"""HEFT with insertion."""

from solvers.helpers import broken_rules, make_graph, make_instance, make_machine

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.heft import heft
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


def test_zero_time_op_is_not_put_inside_another() -> None:
    graph = make_graph(
        {"a": 4, "b": 2, "z": 0, "c": 8}, [("b", "z", 0), ("z", "c", 0)], devices={"a": ("d0",), "z": ("d0",)}
    )
    schedule = _run(make_instance(graph, make_machine(2)))
    # b 0-2 on d1, c needs z on d0: before a if a waits, else after it at 4; HEFT takes b, z, c first, then a.
    assert schedule.start[2] not in range(schedule.start[0] + 1, schedule.start[0] + 4)


def test_group_stays_on_its_device() -> None:
    graph = make_graph({"a": 3, "b": 2, "c": 3}, colocate={"a": "g", "c": "g"}, devices={"c": ("d1",)})
    schedule = _run(make_instance(graph, make_machine(2)))
    assert schedule.device == (1, 0, 1)
    assert schedule.makespan == 6
