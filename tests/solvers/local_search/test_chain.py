"""Annealed solutions: what compiled code runs is what `in_sequence` runs, and what it finds keeps every rule."""

from collections.abc import Iterator
from random import Random

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import linked, ring, star
from solvers.helpers import broken_rules, broken_transfers
from solvers.random_problems import random_everything

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decode.kernel import DEVICE, MAKESPAN
from dlplacer.solvers.heuristics.list_rules import Heuristic, construct, heft, list_schedule
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule, keeps_blocks_and_memory, sequence
from dlplacer.solvers.local_search.anneal import Chain

_MACHINES = {"linked": linked, "ring": ring, "star": star}


def contended_instances(count: int = 120) -> Iterator[tuple[int, Instance, Schedule]]:
    """Contended instances with pins, groups, unequal devices, relays, half duplex and barriers, and schedules."""
    for seed in range(count):
        graph, topology, options = random_everything(seed)
        if options.contention != "link":
            continue
        try:
            instance = build_instance(build_problem(graph, topology, options))
        except InfeasibleError:
            continue
        joined = len(set(instance.component)) == 1
        start = list_schedule(instance, instance.order) if joined and all(instance.allowed) else None
        if start is not None and start.makespan:
            yield seed, instance, start


def _instance(graph: OpGraph, topology: Topology) -> Instance:
    return build_instance(build_problem(graph, topology, Options()))


def _chain(instance: Instance, start: Schedule) -> Chain:
    return Chain(instance, start)


@pytest.mark.parametrize(("machine", "seed"), [("linked", 0), ("ring", 1), ("star", 2)])
def test_a_run_is_that_of_the_sequence(machine: str, seed: int) -> None:
    instance = _instance(FAMILIES["layered"](80, seed, 3.0), _MACHINES[machine](4))
    start = list_schedule(instance, Random(seed).sample(range(80), 80))
    assert start is not None
    expected = in_sequence(instance, start.device, sequence(instance, start.device, start.start))
    chain = _chain(instance, start)
    # Ticks of a route come from a line through two sizes, so each transfer may be a tick off.
    assert chain.makespan == pytest.approx(expected.makespan, abs=len(expected.transfers))
    assert chain.schedule().makespan == pytest.approx(expected.makespan, abs=len(expected.transfers))


@pytest.mark.parametrize(("machine", "rule"), [("star", list_schedule), ("star", heft), ("linked", heft)])
def test_what_moves_leave_behind_is_what_a_fresh_run_gives(machine: str, rule: Heuristic) -> None:
    instance = _instance(FAMILIES["layered"](60, 1, 3.0), _MACHINES[machine](4))
    start = construct(instance, rule)
    assert start is not None
    chain = _chain(instance, start)
    for seed in range(20):
        chain.go_on(100, 0.01 * start.makespan, seed)
        # The present solution, not the best one: it has come through thousands of undone and taken moves.
        now = chain._solution
        again = _chain(instance, start)
        again._device, again._sequence = now.ops[:, 0].copy(), now.sequence.copy()
        assert again._run() == now.counts[MAKESPAN]


def _gather(count: int, seed: int) -> Instance:
    """Ops on one device in a random order, some of no time, that one on another device reads all."""
    random = Random(seed)
    ops = [Op(f"p{i}", "test", random.choice([0.0, 1e-3, 2e-3]), devices=("d0",)) for i in range(count)]
    edges = tuple(Edge(op.id, "join", random.choice([8, 1000, 2000])) for op in ops)
    nodes = tuple(Device(f"d{i}") for i in range(2))
    join = Op("join", "test", 1e-3, devices=("d1",))
    return _instance(OpGraph((*ops, join), edges), Topology(nodes, (), (Link("d0", "d1", 1e6),)))


@pytest.mark.parametrize("seed", range(2))
def test_what_an_op_reads_is_sent_by_the_ends_of_its_producers(seed: int) -> None:
    instance = _gather(200, seed)
    start = list_schedule(instance, Random(seed).sample(range(201), 201))
    assert start is not None
    expected = in_sequence(instance, start.device, sequence(instance, start.device, start.start))
    found = _chain(instance, expected).schedule()
    sent = sorted(found.transfers, key=lambda transfer: (transfer.start, transfer.end))
    assert instance.traffic is not None
    sources = [instance.traffic.requests[one.request].source for one in sent]
    ends = [found.start[op] + instance.duration[op][0] for op in sources]
    assert ends == sorted(ends)
    assert found.makespan == pytest.approx(expected.makespan, abs=200)


def test_moves_that_are_not_taken_leave_nothing_behind() -> None:
    for seed, instance, start in contended_instances(120):
        chain, again = _chain(instance, start), _chain(instance, start)
        for number in range(2):
            chain.go_on(20, 0.02 * start.makespan, number)
            now = chain._solution
            again._device, again._sequence = now.ops[:, DEVICE].copy(), now.sequence.copy()
            assert again._run() == now.counts[MAKESPAN], seed
            used = [0] * instance.device_count
            for ops, size in zip(instance.members, instance.footprint, strict=True):
                used[now.ops[ops[0], DEVICE]] += size
            assert now.used.tolist() == used, seed


def test_what_is_found_keeps_every_rule() -> None:
    count, shorter = 0, 0
    for seed, instance, start in contended_instances():
        chain = _chain(instance, start)
        chain.go_on(300, 0.05 * start.makespan, seed)
        found = chain.schedule()
        assert keeps_blocks_and_memory(instance, found) or not keeps_blocks_and_memory(instance, start)
        assert broken_rules(instance, found) == broken_rules(instance, start) == [], seed
        assert broken_transfers(instance, found) == [], seed
        count, shorter = count + 1, shorter + (found.makespan < start.makespan)
    assert count > 15
    assert shorter > count / 5


def test_annealing_earns_what_it_did() -> None:
    instance = _instance(FAMILIES["layered"](150, 0, 3.0), star(4))
    starts = [construct(instance, rule) for rule in (list_schedule, heft)]
    start = min((one for one in starts if one is not None), key=lambda one: one.makespan)
    chain = _chain(instance, start)
    for seed in range(10):
        chain.go_on(2000, 0.7**seed * 1e-3 * start.makespan, seed)
    assert chain.schedule().makespan < 0.9 * start.makespan
