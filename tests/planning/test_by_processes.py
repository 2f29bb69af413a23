"""Plans for cores that may be threads of one process or processes of their own."""

from dataclasses import replace
from itertools import pairwise

import pytest
from planning.test_under_dispatch import chains, devices_of, recurrent

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.compare import compare
from dlplacer.planning.place import place
from dlplacer.problem.as_processes import are_processes, as_processes
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay

HAND_OVER_S = 5e-6


def cores(count: int = 2, **link: float | None) -> Topology:
    """Threads that take turns of 14 us, and what a hand-over takes between processes."""
    given = {"process_latency_s": HAND_OVER_S, "process_bytes_per_s": 4e9, **link}
    devices = [Device(f"core{n}", "core", dispatch_s=14e-6, process="host", asynchronous=False) for n in range(count)]
    links = [
        Link(one.id, other.id, 1e15, 30e-6, **given) for n, one in enumerate(devices) for other in devices[n + 1 :]
    ]
    return Topology(tuple(devices), (), tuple(links), name="cores")


def test_the_machine_by_processes_has_no_turns_and_the_other_links() -> None:
    machine = as_processes(cores(3))
    assert machine is not None
    assert are_processes(machine)
    assert not are_processes(cores(3))
    # The link has a half of it, and each core is busy for a half.
    assert {link.latency_s for link in machine.links} == {HAND_OVER_S / 2}
    assert {device.dispatch_s for device in machine.devices} == {HAND_OVER_S / 2}
    assert {link.bytes_per_s for link in machine.links} == {4e9}
    assert as_processes(machine) is None


@pytest.mark.parametrize("missing", ["process_latency_s", "process_bytes_per_s"])
def test_a_machine_that_does_not_say_what_processes_take_is_one_of_threads(missing: str) -> None:
    machine = cores(**{missing: None})
    assert as_processes(machine) is None
    assert devices_of(place(chains(2, 100, 3e-6), machine, time_limit_s=5.0).plan) == 1


def test_devices_that_issue_ahead_are_not_meant() -> None:
    machine = cores()
    assert as_processes(replace(machine, devices=tuple(replace(d, asynchronous=True) for d in machine.devices))) is None


# As threads 2.5 us take turns of 14; as processes each chain has a core: 2 x 250 ops of 3 us in 750 us.
def test_two_chains_of_short_ops_get_a_process_each() -> None:
    found = place(chains(2, 250, 3e-6), cores(), time_limit_s=10.0)
    assert are_processes(found.plan.topology)
    assert (devices_of(found.plan), found.status) == (2, "optimal")
    assert found.plan.makespan_s == pytest.approx(750e-6)
    assert found.speedup == pytest.approx(2.0)
    assert violations(found.plan) == ()


# A chain gains nothing from another core; ops of 5 us whose every hand-over takes 60 do not either.
@pytest.mark.parametrize(
    ("graph", "machine"),
    [(chains(1, 300, 3e-6), cores()), (recurrent(20, 5e-6), cores(process_latency_s=60e-6))],
    ids=["chained", "slow to hand over"],
)
def test_what_gains_nothing_stays_on_one_device_of_a_machine_of_threads(graph, machine) -> None:
    found = place(graph, machine, time_limit_s=6.0)
    assert devices_of(found.plan) == 1
    assert found.plan.topology == machine


# Turns hide behind ops of 60 us: nothing to win by processes, and all the time is for the search.
def test_long_ops_are_not_solved_twice() -> None:
    found = place(chains(2, 30, 60e-6), cores(), time_limit_s=5.0)
    assert found.plan.topology == cores()
    assert found.speedup == pytest.approx(2.0, abs=0.02)


# The bound of threads, with 30 us for a hand-over, is above what processes reach.
def test_no_bound_of_one_way_is_said_of_the_other() -> None:
    told = []
    graph = recurrent(6, 10e-6)
    found = place(graph, cores(), time_limit_s=6.0, on_progress=told.append)
    assert are_processes(found.plan.topology)
    assert found.plan.lower_bound_s <= found.plan.makespan_s
    assert max(each.lower_bound_s for each in told) <= found.plan.makespan_s
    assert all(bound_s <= found.plan.lower_bound_s + 1e-12 for bound_s in found.bounds.values())
    compared = compare(graph, cores(), methods=["ilp", "heft", "single"], time_limit_s=4.0)
    assert compared.lower_bound_s <= min(row.makespan_s for row in compared.rows)
    assert {row.method for row in compared.rows if are_processes(row.plan.topology)} >= {"ilp", "heft"}


def test_a_plan_by_processes_is_a_warm_start_for_the_machine() -> None:
    first = place(chains(2, 60, 3e-6), cores(), time_limit_s=5.0).plan
    again = place(chains(2, 60, 3e-6), cores(), time_limit_s=5.0, warm_start=first).plan
    assert again.makespan_s <= first.makespan_s * (1 + 1e-9)


# The first core makes x and then works for 8 more; the second reads x. Busy for 1 of the 2 that handing over takes, the
# first one ends at 2 + 1 + 8 = 11; x is there at 2 + 2 = 4, and the second is done at 4 + 8 = 12.
def test_a_core_is_busy_with_what_it_hands_over() -> None:
    graph = OpGraph(
        (Op("x", "mm", 2e-6), Op("here", "mm", 8e-6), Op("there", "mm", 8e-6)),
        (Edge("x", "here", 0), Edge("x", "there", 0)),
    )
    machine = as_processes(cores(process_latency_s=2e-6))
    assert machine is not None
    ops, _ = replay(build_problem(graph, machine, Options()), (0, 0, 1), (0, 1, 2))
    assert {op.op: op.end_s for op in ops} == pytest.approx({"x": 2e-6, "here": 11e-6, "there": 12e-6})


# A hundred rungs of two ops of 3 us; each is read by both of the next rung. Two cores hand over twice a rung, of which
# each core sends one and takes one: 0.5 + 0.5 us of 3 are worth it, 2 + 2 are not.
@pytest.mark.parametrize(("latency_s", "used"), [(1e-6, 2), (4e-6, 1)])
def test_hand_overs_that_keep_cores_busy_longer_than_they_gain_are_not_made(latency_s: float, used: int) -> None:
    rungs = [[Op(f"{side}{n}", "mm", 3e-6) for side in "ab"] for n in range(100)]
    ladder = OpGraph(
        tuple(op for rung in rungs for op in rung),
        tuple(Edge(one.id, other.id, 0) for rung, after in pairwise(rungs) for one in rung for other in after),
    )
    plan = place(ladder, cores(process_latency_s=latency_s), time_limit_s=4.0).plan
    assert devices_of(plan) == used
    assert violations(plan) == ()


def test_a_hand_over_through_a_router_takes_two_links() -> None:
    given = {"process_latency_s": HAND_OVER_S / 2, "process_bytes_per_s": 4e9}
    links = tuple(Link(f"core{n}", "hub", 1e15, 15e-6, **given) for n in range(2))
    machine = as_processes(replace(cores(), routers=(Router("hub"),), links=links))
    assert machine is not None
    assert {link.latency_s for link in machine.links} == {HAND_OVER_S / 4}
    assert {device.dispatch_s for device in machine.devices} == {HAND_OVER_S / 2}
