"""Processes that issue ops, as a topology describes them: by hand and by brute force."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place
from dlplacer.problem.dispatch import dispatch_of, least_step_s, with_one_process
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.simulate import replay

FREE = replace(Options(), contention="none", memory="sum", step="joint")


def machine(devices: int, latency_s: float = 0.0, **fields: object) -> Topology:
    """Equal devices, all joined."""
    nodes = tuple(Device(f"d{i}", "gpu", **fields) for i in range(devices))  # type: ignore[arg-type]
    links = tuple(Link(f"d{i}", f"d{j}", 1e15, latency_s) for i in range(devices) for j in range(i))
    return Topology(nodes, (), links)


def threads(devices: int, dispatch_s: float, latency_s: float = 0.0) -> Topology:
    """Cores that share an interpreter."""
    return machine(devices, latency_s, dispatch_s=dispatch_s, process="host", asynchronous=False)


def independent(*times_s: float) -> OpGraph:
    """Ops a, b, … without edges."""
    return OpGraph(tuple(Op("abcdefghij"[i], "x", time_s) for i, time_s in enumerate(times_s)))


def spans(graph: OpGraph, topology: Topology, device: str) -> dict[str, tuple[float, float]]:
    """Op → (start, end), for a digit per op that names its device; ops in the graph's order."""
    ops, _ = replay(build_problem(graph, topology, FREE), [int(digit) for digit in device], range(len(graph.ops)))
    return {entry.op: (entry.start_s, entry.end_s) for entry in ops}


# Each process issues for itself: both ops are issued by 4 and run from 4 to 14.
def test_devices_of_their_own_processes_do_not_wait_for_each_other() -> None:
    assert spans(independent(10, 10), machine(2, dispatch_s=4.0), "01") == {"a": (4, 14), "b": (4, 14)}
    shared = machine(2, dispatch_s=4.0, process="host")
    assert spans(independent(10, 10), shared, "01") == {"a": (4, 14), "b": (8, 18)}


def test_one_process_for_all_devices_is_a_machine_that_says_so() -> None:
    graph = independent(10, 0, 10)
    shared = build_problem(graph, machine(2, dispatch_s=4.0, process="host"), FREE)
    stated = build_problem(graph, with_one_process(machine(2), 4.0), FREE)
    assert replay(stated, [0, 1, 1], range(3)) == replay(shared, [0, 1, 1], range(3))


# Two threads, calls 3 apart: starts 0, 3, 6, 9 where ops take 2; on one device they follow one another without a wait.
def test_cores_of_one_process_share_an_interpreter_and_one_alone_does_not() -> None:
    graph = independent(2, 2, 2, 2)
    assert spans(graph, threads(2, 3.0), "0101") == {"a": (0, 2), "b": (3, 5), "c": (6, 8), "d": (9, 11)}
    assert spans(graph, threads(2, 3.0), "0000") == {"a": (0, 2), "b": (2, 4), "c": (4, 6), "d": (6, 8)}
    own = machine(2, dispatch_s=3.0, asynchronous=False)
    assert spans(graph, own, "0101") == {"a": (0, 2), "b": (0, 2), "c": (2, 4), "d": (2, 4)}


# a runs on d0 until 10; b, c, d on d1 start 3 s after it, then follow one another; e on d0 at 10, as the
# last start on d1 was at 7.
def test_a_long_op_leaves_the_interpreter_to_others() -> None:
    assert spans(independent(10, 2, 2, 2, 2), threads(2, 3.0), "01110") == {
        "a": (0, 10),
        "b": (3, 5),
        "c": (5, 7),
        "d": (7, 9),
        "e": (10, 12),
    }


def a_case(seed: int, ops: int) -> tuple[OpGraph, Topology]:
    """A random graph and machine in whole seconds."""
    chooser = random.Random(seed)
    graph = OpGraph(
        tuple(Op(f"o{i}", "x", float(chooser.choice((0, 1, 1, 2, 5)))) for i in range(ops)),
        tuple(Edge(f"o{i}", f"o{j}", 0) for j in range(ops) for i in range(j) if chooser.random() < 0.25),
    )
    latency_s, devices = chooser.randint(0, 3), chooser.randint(2, 3)
    one = chooser.random() < 0.5
    nodes = tuple(
        Device(
            f"d{i}",
            "gpu",
            # Among devices that share a process, issues of no time could go in any order.
            dispatch_s=float(chooser.randint(one and i < 2, 3)),
            process="host" if one and i < 2 else "",
            asynchronous=chooser.random() < 0.5,
        )
        for i in range(devices)
    )
    links = tuple(Link(f"d{i}", f"d{j}", 1e15, latency_s) for i in range(devices) for j in range(i))
    return graph, Topology(nodes, (), links)


@given(st.integers(0, 10**6), st.sampled_from(["", "host"]))
@settings(max_examples=60)
def test_without_dispatch_time_processes_change_no_bit(seed: int, process: str) -> None:
    graph, topology = a_case(seed, 12)
    device = [random.Random(seed - i).randrange(len(topology.devices)) for i in range(len(graph.ops))]
    plain = replace(topology, devices=tuple(Device(d.id, d.type) for d in topology.devices))
    zero = replace(topology, devices=tuple(replace(d, dispatch_s=0.0, process=process) for d in topology.devices))
    found = [replay(build_problem(graph, each, Options()), device, range(12)) for each in (plain, zero)]
    assert found[0] == found[1]


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_longer_dispatch_never_helps(seed: int) -> None:
    graph, topology = a_case(seed, 12)
    device = [random.Random(seed * 3 + i).randrange(len(topology.devices)) for i in range(len(graph.ops))]

    def length_s(seconds: float, *, ahead: bool) -> float:
        nodes = tuple(replace(d, dispatch_s=seconds, asynchronous=ahead) for d in topology.devices)
        ops, _ = replay(build_problem(graph, replace(topology, devices=nodes), FREE), device, range(12))
        return max(entry.end_s for entry in ops)

    ahead = [length_s(seconds, ahead=True) for seconds in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert ahead == sorted(ahead)
    # Who asks first is called first, which may change with the length of calls: they are compared with none.
    assert all(length_s(seconds, ahead=False) >= ahead[0] for seconds in (0.5, 1.0, 2.0, 4.0))


def best_by_brute_force(problem: Problem) -> float:
    """The shortest simulated step over all placements and orders."""

    def orders() -> Iterator[tuple[int, ...]]:
        for order in permutations(range(problem.op_count)):
            place_of = {op: place for place, op in enumerate(order)}
            if all(place_of[arc.source] < place_of[arc.target] for arc in problem.arcs):
                yield order

    devices = list(product(range(problem.device_count), repeat=problem.op_count))
    return min(
        max(entry.end_s for entry in replay(problem, device, order)[0]) for order in orders() for device in devices
    )


def test_bounds_and_plans_against_all_plans() -> None:
    optimal = 0
    for seed in range(8):
        graph, topology = a_case(seed, 4)
        problem = build_problem(graph, topology, FREE)
        best_s = best_by_brute_force(problem)
        assert least_step_s(problem, dispatch_of(topology)) <= best_s
        plan = place(graph, topology, FREE, work_s=1.0).plan
        assert plan.lower_bound_s <= best_s * (1 + 1e-9)
        assert best_s <= plan.makespan_s * (1 + 1e-9)
        assert violations(plan) == ()
        optimal += plan.makespan_s <= best_s * (1 + 1e-9)
    assert optimal >= 5
