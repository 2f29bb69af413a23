"""The work-conserving list schedule."""

from solvers.helpers import broken_rules, make_graph, make_instance, make_machine

from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_rules import heft, list_schedule
from dlplacer.solvers.heuristics.orders import by_rank, upward_ranks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def _run(instance: Instance) -> Schedule:
    schedule = list_schedule(instance, by_rank(instance, upward_ranks(instance)))
    assert schedule is not None
    assert not broken_rules(instance, schedule)
    return schedule


def test_work_conserving_order_beats_heft() -> None:
    graph = make_graph({"s": 4, "x": 6, "y": 6, "f": 5}, [("s", "x", 0), ("s", "y", 0)])
    instance = make_instance(graph, make_machine(2))
    # HEFT takes s, x, y, f: s 0-4 and x 4-10 on d0, y 4-10 on d1; the gap 0-4 on d1 is too short for f: 10-15.
    found = heft(instance, by_rank(instance, upward_ranks(instance)))
    assert found is not None
    assert found.makespan == 15
    # A free device never waits: s 0-4 and x 4-10 on d0, f 0-5 and y 5-11 on d1.
    assert _run(instance).makespan == 11


def test_packing_helps_where_greed_runs_out_of_memory() -> None:
    sizes = {"a": 3, "b": 2, "c": 2, "d": 2, "e": 3}
    graph = make_graph(dict.fromkeys(sizes, 1), output_bytes=sizes)
    instance = make_instance(graph, make_machine(2, memory=6))
    greedy = list_schedule(instance, by_rank(instance, [1, 5, 4, 3, 2]))
    assert greedy is None
    found = construct(instance, list_schedule, [0, 1, 1, 1, 0])
    assert found is not None
    assert not broken_rules(instance, found)
