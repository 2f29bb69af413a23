"""The bound that knows memory: by hand, against optima, and never above them."""

from fractions import Fraction

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import make_problem
from solvers.random_problems import random_problem

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.bounds.memory_assignment import memory_assignment_bound
from dlplacer.solvers.instance.instance import build_instance


def bound_s(graph: OpGraph, topology: Topology) -> Fraction:
    problem = make_problem(graph, topology)
    return memory_assignment_bound(build_instance(problem)) * problem.tick_s


def layers(count: int, fast: int, slow: int) -> OpGraph:
    """A chain of equal layers of one byte of weights each."""
    ops = [Op(f"l{i}", "layer", {"fast": fast, "slow": slow}, weight_bytes=1) for i in range(count)]
    return OpGraph(tuple(ops), tuple(Edge(f"l{i}", f"l{i + 1}", 3) for i in range(count - 1)))


def two_machines(fast_bytes: int, slow_bytes: int, latency_s: int = 2) -> Topology:
    devices = Device("a", "fast", memory_bytes=fast_bytes), Device("b", "slow", memory_bytes=slow_bytes)
    return Topology(devices, (), (Link("a", "b", 1, latency_s),))


def test_what_does_not_fit_runs_on_the_slow_device() -> None:
    # 10 layers, 6 on the fast device: 6 · 10 + 4 · 30 = 180, and one crossing of 3 bytes ÷ 1 byte/s + 2 s = 5.
    assert bound_s(layers(10, 10, 30), two_machines(6, 10)) == 185


def test_a_slow_device_that_is_needed_for_one_layer_costs_the_crossing_too() -> None:
    assert bound_s(layers(7, 10, 11), two_machines(6, 7, latency_s=50)) == 77


def test_three_machines_are_joined_by_a_tree() -> None:
    devices = tuple(Device(f"d{i}", "fast" if i == 0 else "slow", memory_bytes=2) for i in range(3))
    links = tuple(Link(f"d{a}", f"d{b}", 1, latency) for a, b, latency in ((0, 1, 1), (1, 2, 4), (0, 2, 9)))
    # all three are needed: 6 ticks of work and the tree of crossings 3 + 1 and 3 + 4
    assert bound_s(layers(6, 1, 1), Topology(devices, (), links)) == 6 + 4 + 7


@pytest.mark.parametrize("chunk", range(1))
def test_it_never_exceeds_the_optimum(chunk: int) -> None:
    binding = 0
    for seed in range(chunk * 150, (chunk + 1) * 150):
        graph, topology = random_problem(seed)
        optimum = optimal_makespan(graph, topology)
        if optimum is None:
            continue
        bound = bound_s(graph, topology)
        assert bound <= optimum, seed
        binding += bound > 0
    assert binding > 5
