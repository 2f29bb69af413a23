"""Searching on the best-connected devices of a machine first."""

import time
from dataclasses import replace
from threading import Event

import dlplacer as dp
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.device_subset import best_connected, on_device_subset, subset_incumbent
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import in_sequence

# Two islands of three devices with fast links inside and a slow one between.
LINKS = [("a0", "a1"), ("a1", "a2"), ("a0", "a2"), ("b0", "b1"), ("b1", "b2"), ("b0", "b2")]
ISLANDS = dp.Topology(
    tuple(dp.Device(name, "T") for name in ("a0", "b0", "a1", "b1", "a2", "b2")),
    (),
    (*(dp.Link(*pair, 100.0) for pair in LINKS), dp.Link("a0", "b0", 1.0)),
)
FORK = dp.OpGraph(
    (
        dp.Op("in", "op", {"T": 1.0}),
        *(dp.Op(f"branch{number}", "op", {"T": 5.0}) for number in range(4)),
        dp.Op("out", "op", {"T": 1.0}),
    ),
    tuple(
        edge
        for number in range(4)
        for edge in (dp.Edge("in", f"branch{number}", 100), dp.Edge(f"branch{number}", "out", 100))
    ),
)


def instance_of(topology: dp.Topology):
    return build_instance(build_problem(with_times(FORK, topology), topology, dp.Options()))


def budget() -> Budget:
    return Budget(time.monotonic() + 60, 0.0, 0, 1, Event(), lambda makespan, bound: None)


def test_the_best_connected_devices_are_an_island() -> None:
    chosen = best_connected(instance_of(ISLANDS), 3)
    assert {ISLANDS.devices[device].id for device in chosen} in ({"a0", "a1", "a2"}, {"b0", "b1", "b2"})


def test_few_devices_limit_every_op_and_small_machines_stay() -> None:
    instance = instance_of(ISLANDS)
    subset = on_device_subset(instance, 3)
    assert subset is not None
    chosen = best_connected(instance, 3)
    assert all(set(devices) == chosen for devices in subset.allowed)
    assert on_device_subset(instance, 6) is None


def test_few_devices_use_no_other_as_a_relay() -> None:
    instance = instance_of(ISLANDS)
    subset = on_device_subset(instance, 2)
    assert subset is not None
    assert subset.traffic is not None
    pair = sorted(best_connected(instance, 2))
    assert len(subset.traffic.routes.between(0, *pair)) == 1
    assert instance.traffic is not None
    assert len(instance.traffic.routes.between(0, *pair)) == 2


def test_a_hint_leaves_out_transfers_on_routes_that_the_model_does_not_know() -> None:
    instance = instance_of(ISLANDS)
    assert instance.traffic is not None
    spread = in_sequence(instance, [number % instance.device_count for number in range(6)], instance.order)
    assert spread.transfers
    foreign = tuple(replace(send, route=send.route[:0], start=()) for send in spread.transfers)
    bounds = lower_bounds(instance)
    model, variables = build_model(
        instance, bounds, spread.makespan, replace(spread, transfers=foreign), with_transfers=True
    )
    assert variables.optional_transfers
    assert model.validate() == ""


def test_what_is_found_aside_is_offered_and_its_bounds_are_not() -> None:
    instance = instance_of(ISLANDS)
    outer = Incumbent(budget())
    inner = subset_incumbent(outer, time.monotonic() + 60)
    alone = in_sequence(instance, [0] * instance.op_count, instance.order)
    assert inner.offer(alone)
    assert outer.best is alone
    inner.raise_bound(alone.makespan)
    assert inner.closed
    assert outer.bound == 0


def test_more_devices_are_not_worse_under_contention() -> None:
    subset = dp.place(FORK, dp.Topology(ISLANDS.devices[::2], (), ISLANDS.links[:3]), time_limit_s=120)
    many = dp.place(FORK, ISLANDS, time_limit_s=120)
    assert many.plan.makespan_s <= subset.plan.makespan_s + 1e-9
