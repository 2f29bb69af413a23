"""Lower bounds: hand-computed examples, and never above the true optimum."""

from itertools import combinations
from random import Random

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import make_graph, make_instance, make_machine, make_problem
from solvers.random_problems import random_problem

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.bounds import (
    best_prices,
    critical_path,
    heads,
    lower_bounds,
    reachable_capacity,
    tails,
    whole_area,
)
from dlplacer.solvers.instance.instance import build_instance


def test_critical_path_counts_forced_delays() -> None:
    graph = make_graph({"a": 2, "b": 3}, [("a", "b", 5)], devices={"a": ("d0",), "b": ("d1",)})
    # 2 + 5 / 1 + 3
    assert critical_path(make_instance(graph, make_machine(2))) == 10


def test_area_of_identical_devices() -> None:
    # (3 + 3 + 3) / 2, rounded up to whole ticks of 3 s: the tick is the common unit.
    instance = make_instance(make_graph({"a": 3, "b": 3, "c": 3}), make_machine(2))
    assert instance.shortest == (1, 1, 1)
    assert whole_area(instance) == 2


def test_area_of_unequal_devices_weighs_their_speeds() -> None:
    graph = make_graph({f"k{i}": {"slow": 3.0, "fast": 1.0} for i in range(8)})
    topology = Topology((Device("d0", "slow"), Device("d1", "fast")), (), (Link("d0", "d1", 1.0),))
    # Per second, fast does 1 op and slow 1/3: 8 / (4/3) = 6 s. Shortest times over two devices give only 4 s.
    instance = make_instance(graph, topology)
    assert whole_area(instance) == 6
    assert best_prices(instance).device[1] > best_prices(instance).device[0]


def test_heads_know_that_inputs_wait_for_each_other_or_travel() -> None:
    graph = make_graph({"a": 4, "b": 4, "c": 1}, [("a", "c", 3), ("b", "c", 3)])
    instance = make_instance(graph, make_machine(2))
    # c starts after both on one device (8), or after one of them and a delay: 4 + 3 = 7.
    assert heads(instance) == [0, 0, 7]
    # After a still comes c, at least: 1; after c nothing.
    assert tails(instance) == [1, 1, 0]


def test_interval_area_between_two_ops() -> None:
    times = {"u": 1, "a": 2, "b": 2, "c": 2, "v": 1}
    graph = make_graph(times, [("u", x, 0) for x in "abc"] + [(x, "v", 0) for x in "abc"])
    # u 1 + ⌈6 / 2⌉ + v 1: the path alone is 4.
    instance = make_instance(graph, make_machine(2))
    assert critical_path(instance) == 4
    assert lower_bounds(instance).makespan == 5


def test_floating_work_after_a_cut() -> None:
    times = {"f": 4, "a": 1, "b": 1, "g": 4, "h": 4}
    graph = make_graph(times, [("f", "a", 0), ("a", "b", 0), ("f", "g", 0), ("f", "h", 0)])
    # After f are 1 + 1 + 4 + 4 = 10 s of work for two devices: 4 + 5.
    assert lower_bounds(make_instance(graph, make_machine(2))).makespan == 9


@pytest.mark.parametrize("first", range(5000, 5200, 100))
def test_no_bound_exceeds_the_optimum(first: int) -> None:
    for seed in range(first, first + 100):
        graph, topology = random_problem(seed)
        problem = make_problem(graph, topology)
        instance = build_instance(problem)
        optimum = optimal_makespan(graph, topology)
        if optimum is not None:
            bounds = [critical_path(instance), whole_area(instance), lower_bounds(instance).makespan]
            assert max(bounds) * problem.tick_s <= optimum, seed


def test_equal_layers_leave_the_rest_of_a_device_empty() -> None:
    assert reachable_capacity([3] * 10, [20, 31, None, 2]) == [18, 31, None, 0]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_largest_sum_of_any_subset(seed: int) -> None:
    random = Random(seed)
    unit = random.choice([1, 5, 2**28])
    sizes = [unit * random.randint(0, 9) for _ in range(random.randint(1, 9))]
    sums = {sum(chosen) for count in range(len(sizes) + 1) for chosen in combinations(sizes, count)}
    for room in range(0, sum(sizes), max(1, sum(sizes) // 13)):
        expected = max(size for size in sums if size <= room)
        assert reachable_capacity(sizes, [room]) == [expected]


def test_too_many_sums_are_rounded_to_the_common_divisor() -> None:
    sizes = [2 * (10**9 + number) for number in range(5)]
    assert reachable_capacity(sizes, [5 * 10**9 + 1]) == [5 * 10**9]
