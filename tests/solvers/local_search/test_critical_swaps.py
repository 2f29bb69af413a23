"""Orders on devices and links: what descent finds keeps every rule and is never longer than what it began with."""

import time

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import broken_rules, broken_transfers, make_graph, make_machine
from solvers.local_search.contended import contended_instances

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.heft import heft
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import in_sequence
from dlplacer.solvers.local_search.critical_swaps import DisjunctiveGraph, swap_critical


def test_a_tensor_that_is_long_ready_goes_first() -> None:
    # The tensor of b is read first, so a list schedule sends it first, at 9 to 11, and that of a after it, at 11 to 21,
    # as ten ticks do not fit between 1 and 9. The other way round they travel at 1 to 11 and 11 to 13, s runs first.
    graph = make_graph({"a": 1.0, "b": 8.0, "r": 1.0, "s": 1.0}, [("b", "r", 2), ("a", "s", 10)])
    problem = build_problem(graph, make_machine(2), Options())
    instance, tick_s = build_instance(problem), float(problem.tick_s)
    listed = in_sequence(instance, [0, 0, 1, 1], range(4))
    assert listed.makespan * tick_s == pytest.approx(22)
    swapped = DisjunctiveGraph(instance, listed)
    assert swapped.descend(time.monotonic() + 10) * tick_s == pytest.approx(14)
    found = swapped.schedule()
    assert found.makespan == swapped.makespan
    assert broken_rules(instance, found) == broken_transfers(instance, found) == []


def test_what_is_found_keeps_every_rule() -> None:
    better = 0
    for seed, instance, start in contended_instances():
        graph = DisjunctiveGraph(instance, start)
        assert graph.makespan <= start.makespan, seed
        least = graph.makespan
        graph.descend(time.monotonic() + 10)
        found = graph.schedule()
        assert broken_rules(instance, found) == broken_transfers(instance, found) == [], seed
        assert found.makespan == graph.makespan <= least, seed
        assert (found.device, len(found.transfers)) == (start.device, len(start.transfers)), seed
        better += found.makespan < least
    assert better >= 5


def test_layers_on_a_star_gain() -> None:
    instance = build_instance(build_problem(FAMILIES["layered"](150, 1, 3.0), star(4), Options()))
    incumbent = Incumbent(Budget(time.monotonic() + 30))
    incumbent.offer(construct(instance, heft))
    assert incumbent.best is not None
    before = incumbent.best.makespan
    swap_critical(instance, incumbent, 20.0)
    found = incumbent.best
    assert found.makespan < 0.99 * before
    assert broken_rules(instance, found) == broken_transfers(instance, found) == []


def test_no_time_leaves_the_schedule_as_it_is() -> None:
    instance = build_instance(build_problem(FAMILIES["layered"](60, 0, 3.0), star(4), Options()))
    incumbent = Incumbent(Budget(time.monotonic() + 30))
    incumbent.offer(construct(instance, heft))
    before = incumbent.best
    swap_critical(instance, incumbent, 0.0)
    assert incumbent.best is before
