"""The specification: right plans pass, and for every rule there are plans that break it and nothing else."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from random import Random
from types import MappingProxyType
from typing import Any

import networkx as nx
import pytest
from check import plans
from check.plans import changed, sent, with_op, with_ops
from hypothesis import given, settings
from hypothesis import strategies as st

from dlplacer.check import RULES, arithmetic, check, memory, placement, routing, shortest, timing, violations
from dlplacer.check.memory import live_bytes, used_bytes
from dlplacer.check.violation import tolerance_s
from dlplacer.errors import CheckError, InputError
from dlplacer.graph import Edge, Op, OpGraph
from dlplacer.options import CHOICES, Options
from dlplacer.plan import DeviceMemory, Plan, ScheduledOp, Segment, Transfer
from dlplacer.topology import Link, Topology


@dataclass(frozen=True)
class Broken:
    """A plan that breaks one rule: the rule, the name that is reported, and the numbers in the message.

    `also` names what cannot be right any more once this rule is broken.
    """

    rule: Callable[[Plan], Any]
    plan: Plan
    name: str
    message: str
    also: tuple[str, ...] = ()


def over(plan: Plan, *segments: tuple[str, float, float]) -> Plan:
    """The plan with its only transfer over other segments, to the same device."""
    (transfer,) = plan.transfers
    new = sent(transfer.tensor, transfer.source, transfer.bytes, *segments)
    return replace(plan, transfers=(replace(new, target=transfer.target),))


def reporting(plan: Plan, device: str, capacity_bytes: int | None, peak_bytes: int) -> Plan:
    """The plan with another memory entry."""
    return replace(plan, memory={**plan.memory, device: DeviceMemory(capacity_bytes, peak_bytes)})


def smaller(plan: Plan, memory_bytes: int) -> Plan:
    """The plan with another capacity of device a, in the topology and in its report."""
    devices = tuple(replace(d, memory_bytes=memory_bytes) if d.id == "a" else d for d in plan.topology.devices)
    smaller_plan = replace(plan, topology=replace(plan.topology, devices=devices))
    return reporting(smaller_plan, "a", memory_bytes, plan.memory["a"].peak_bytes)


def alone(*ops: tuple[str, float, float]) -> Plan:
    """Ops without edges on one device, in the order given."""
    graph = OpGraph(tuple(Op(name, "test", end_s - start_s) for name, start_s, end_s in ops))
    scheduled = [(name, "a", start_s, end_s) for name, start_s, end_s in ops]
    return plans.plan(graph, plans.machine(), plans.PAPER, scheduled)


def circle() -> Plan:
    """Ops of no time: a runs p, then q; b runs r, then s. But p reads s, and r reads q."""
    graph = OpGraph(tuple(Op(name, "test", 0) for name in "pqrs"), (Edge("s", "p", 0), Edge("q", "r", 0)))
    order = [(name, device, 0.0, 0.0) for name, device in ("pa", "qa", "rb", "sb")]
    transfers = [sent("s:0->p", "s", 0, ("ba", 0, 0)), sent("q:0->r", "q", 0, ("ab", 0, 0))]
    return plans.plan(graph, plans.machine(Link("a", "b", 1)), plans.PAPER, order, transfers)


SINGLE, CROSSING, ROUTED, RELAYED = plans.single(), plans.crossing(), plans.routed(), plans.relayed()
SHARED, CONTENDED, TRAINED, ALIVE = plans.shared("device"), plans.contended(), plans.trained(), plans.alive()
SERIAL, HOPS = plans.shared("edge", "link"), plans.hop_by_hop("store-and-forward")
TOGETHER = plans.hop_by_hop("cut-through")

PLACED = {
    "op missing": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=CROSSING.ops[:1]),
        "eq. 7 placement",
        "op 'y' is scheduled 0 times; it must be once",
    ),
    "op twice": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=(*CROSSING.ops, CROSSING.ops[0])),
        "eq. 7 placement",
        "op 'x' is scheduled 2 times; it must be once",
    ),
    "unknown op": Broken(
        placement.every_op_once,
        replace(CROSSING, ops=(*CROSSING.ops, ScheduledOp("ghost", "a", 2, 3))),
        "eq. 7 placement",
        "op 'ghost' is scheduled, but the graph has no such op",
    ),
    "unknown device": Broken(
        placement.every_op_once,
        changed(CROSSING, "y", device="z"),
        "eq. 7 placement",
        "op 'y' is on 'z', which is no device of the topology",
    ),
    "a router runs an op": Broken(
        placement.every_op_once,
        changed(ROUTED, "y", device="r"),
        "eq. 7 placement",
        "op 'y' is on 'r', which is no device of the topology",
    ),
    "device not allowed": Broken(
        placement.allowed_devices,
        with_op(CROSSING, "y", devices=("a", "cpu")),
        "eq. 7 allowed devices",
        "op 'y' is on 'b' of type 'gpu'; it may run on a, cpu",
    ),
    "no device allowed": Broken(
        placement.allowed_devices,
        with_op(CROSSING, "y", devices=()),
        "eq. 7 allowed devices",
        "op 'y' is on 'b' of type 'gpu'; it may run on nothing",
    ),
    "group torn apart": Broken(
        placement.colocation,
        with_ops(CROSSING, colocate="g"),
        "eq. 7 colocation",
        "group 'g' is torn apart: op 'x' on 'a', op 'y' on 'b'",
    ),
}

TIMED = {
    "op too long": Broken(
        timing.durations,
        changed(CROSSING, "y", end_s=9.0),
        "duration",
        "op 'y' lasts 4 s in the plan; on 'b' it takes 3 s",
    ),
    "op a little too short": Broken(
        timing.durations,
        changed(CROSSING, "y", end_s=7.999999),
        "duration",
        "op 'y' lasts 2.999999 s in the plan; on 'b' it takes 3 s",
    ),
    "no time known": Broken(
        timing.durations,
        with_op(SINGLE, "y", time_s={"cpu": 3.0}),
        "duration",
        "op 'y' has no time on device type 'gpu'",
    ),
    "before the step": Broken(
        timing.durations,
        changed(SINGLE, "x", start_s=-1.0, end_s=1.0),
        "duration",
        "op 'x' starts at -1 s, before the step",
    ),
    "ops overlap": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 2), ("y", 1.5, 3)),
        "eq. 12 overlap",
        "device 'a': op 'y' starts at 1.5 s, but 'x', listed before it, runs from 0 to 2 s",
    ),
    "op inside one that is not its neighbour": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 4), ("y", 1, 2), ("z", 2, 3)),
        "eq. 12 overlap",
        "op 'z' starts at 2 s, but 'x', listed before it, runs from 0 to 4 s",
    ),
    "zero time inside another": Broken(
        timing.one_op_at_a_time,
        alone(("x", 0, 4), ("y", 2, 2)),
        "eq. 12 overlap",
        "op 'y' starts at 2 s, but 'x', listed before it, runs from 0 to 4 s",
    ),
    "zero time at the start, but listed after": Broken(
        timing.one_op_at_a_time,
        alone(("x", 1, 4), ("y", 1, 1)),
        "eq. 12 overlap",
        "op 'y' starts at 1 s, but 'x', listed before it, runs from 1 to 4 s",
    ),
    "not in execution order": Broken(
        timing.one_op_at_a_time,
        alone(("y", 4, 5), ("x", 0, 4)),
        "eq. 12 overlap",
        "op 'x' starts at 0 s, but 'y', listed before it, runs from 4 to 5 s",
    ),
    "backward before the loss": Broken(
        timing.barrier_at_the_loss,
        changed(TRAINED, "g", start_s=2.0, end_s=3.0),
        "barrier at the loss",
        "backward op 'g' starts at 2 s, before forward op 'h' ends at 3 s",
    ),
    "update before the loss": Broken(
        timing.barrier_at_the_loss,
        changed(with_op(TRAINED, "g", phase="optimizer"), "g", start_s=2.5, end_s=3.5),
        "barrier at the loss",
        "optimizer op 'g' starts at 2.5 s, before forward op 'h' ends at 3 s",
    ),
    "consumer before the tensor": Broken(
        timing.precedence,
        changed(CROSSING, "y", start_s=4.0, end_s=7.0),
        "eq. 10 precedence",
        "op 'y' on 'b' starts at 4 s, before tensor 't' of 'x' is there at 5 s",
    ),
    "consumer before its own transfer": Broken(
        timing.precedence,
        changed(SERIAL, "z", start_s=4.0, end_s=5.0),
        "eq. 10 precedence",
        "op 'z' on 'b' starts at 4 s, before tensor 't' of 'x' is there at 5 s",
    ),
    "transfer before the producer ends": Broken(
        timing.precedence,
        changed(CROSSING, transfer=0, start_s=1.0, end_s=4.0),
        "eq. 10 precedence",
        "the transfer of 't' to 'b' starts at 1 s, before 'x' ends at 2 s",
    ),
    "consumer before the producer": Broken(
        timing.precedence,
        replace(SINGLE, ops=(ScheduledOp("y", "a", 0, 3), ScheduledOp("x", "a", 3, 5))),
        "eq. 10 precedence",
        "op 'y' on 'a' starts at 0 s, before tensor 't' of 'x' is there at 5 s",
        also=("eq. 10, 12 order",),
    ),
    "listed before what it reads": Broken(
        timing.order,
        replace(plans.all_zero(), ops=plans.all_zero().ops[::-1]),
        "eq. 10, 12 order",
        "ops wait for each other in a circle: 'y' on 'a' → 'x' on 'a' → 'y' on 'a'",
    ),
    "devices wait for each other": Broken(
        timing.order,
        circle(),
        "eq. 10, 12 order",
        "'q' on 'a' → 'r' on 'b' → 's' on 'b' → 'p' on 'a'",
    ),
}

ON_THE_WAY = {
    "no transfer": Broken(
        routing.transfers_needed,
        replace(CROSSING, transfers=()),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 0 times; with 'transfers: edge' it must go 1 times",
    ),
    "transferred once for two edges": Broken(
        routing.transfers_needed,
        replace(SHARED, options=plans.PAPER),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 1 times; with 'transfers: edge' it must go 2 times",
    ),
    "transferred twice for one device": Broken(
        routing.transfers_needed,
        replace(SHARED, transfers=SHARED.transfers * 2),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 2 times; with 'transfers: device' it must go 1 times",
    ),
    "unknown tensor": Broken(
        routing.transfers_needed,
        replace(CROSSING, transfers=(*CROSSING.transfers, replace(CROSSING.transfers[0], tensor="u"))),
        "eq. 8 transfers",
        "tensor 'u' goes to 'b' 1 times; with 'transfers: edge' it must go 0 times",
    ),
    "other bytes": Broken(
        routing.transfers_needed,
        # 10 B ÷ 10 B/s + 1 s = 2 s
        replace(CROSSING, transfers=(sent("t", "x", 10, ("ab", 2, 4)),)),
        "eq. 8 transfers",
        "the transfer of 't' says 10 bytes of 'x'; the graph says 20 bytes of 'x'",
    ),
    "other source": Broken(
        routing.transfers_needed,
        replace(ALIVE, transfers=(sent("t", "w", 20, ("ab", 2, 5)),)),
        "eq. 8 transfers",
        "the transfer of 't' says 20 bytes of 'w'; the graph says 20 bytes of 'x'",
    ),
    "no link": Broken(
        routing.contiguous_routes,
        replace(CROSSING, topology=replace(CROSSING.topology, links=())),
        "eq. 8, 9 route",
        "tensor 't' to 'b': the topology has no link 'a' → 'b'",
    ),
    "a hop from elsewhere": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("ab", 2, 4), ("cb", 5, 9)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': it is at 'b', but the next hop leads 'c' → 'b'",
    ),
    "not from the producer": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("bc", 5, 9)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': it is at 'a', but the next hop leads 'b' → 'c'",
    ),
    "ends at a router": Broken(
        routing.contiguous_routes,
        over(ROUTED, ("ar", 2, 5)),
        "eq. 8, 9 route",
        "tensor 't' to 'b': a segment ends at 'r', which is no device",
    ),
    "ends at another device": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("ab", 2, 4)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': the route ends at 'b'",
    ),
    "relays inside a segment": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("abc", 2, 8)),  # 20 ÷ 10 + 20 ÷ 5 s
        "eq. 8, 9 route",
        "tensor 't' to 'c': device 'b' relays inside a segment; end the segment there",
    ),
    "goes round": Broken(
        routing.contiguous_routes,
        changed(over(CROSSING, ("ab", 2, 5), ("ba", 5, 8), ("ab", 8, 11)), "y", start_s=11.0, end_s=14.0),
        "eq. 8, 9 route",
        "tensor 't' to 'b': the route visits 'a' 2 times; it may visit a node once",
    ),
    "not the shortest": Broken(
        shortest.shortest_routes,
        plans.detour("store-and-forward", "arsb"),
        "shortest route",
        "tensor 't' to 'b' takes a route of 6 s; 20 bytes need no more than 5 s",
    ),
    "not the shortest, cut-through": Broken(
        shortest.shortest_routes,
        plans.detour("cut-through", "ab"),
        "shortest route",
        "tensor 't' to 'b' takes a route of 5 s; 20 bytes need no more than 2 s",
    ),
    "transfer too short": Broken(
        routing.transfer_durations,
        changed(CROSSING, transfer=0, end_s=4.5),
        "eq. 11 delay",
        "tensor 't' takes 2.5 s from 'a' to 'b' in the plan; 20 bytes need 3 s",
    ),
    "cut-through under eq. 11": Broken(
        routing.transfer_durations,
        replace(plans.cut_through(), options=plans.PAPER),
        "eq. 11 delay",
        "tensor 't' takes 6 s from 'a' to 'b' in the plan; 20 bytes need 8 s",
    ),
    "leaves the relay before it is there": Broken(
        routing.transfer_durations,
        changed(RELAYED, transfer=0, segment=1, start_s=3.0, end_s=7.0),
        "eq. 11 delay",
        "tensor 't' leaves 'b' at 3 s, before it is there at 4 s",
    ),
    "two on one link": Broken(
        routing.one_transfer_at_a_time,
        changed(CONTENDED, transfer=1, start_s=2.0, end_s=4.0),
        "link contention",
        "link 'a' → 'b' carries 'x' until 3 s, but 'y' starts on it at 2 s",
    ),
    "both ways on a half-duplex link": Broken(
        routing.one_transfer_at_a_time,
        replace(CONTENDED, topology=plans.contended("half").topology),
        "link contention",
        "link 'a' → 'b' carries 'k' until 3 s, but 'x' starts on it at 1 s",
    ),
    "two on the second of two links": Broken(
        routing.one_transfer_at_a_time,
        changed(HOPS, transfer=1, start_s=3.0, end_s=9.0),
        "link contention",
        "link 'r' → 'b' carries 'x' until 6 s, but 'y' starts on it at 5 s",
    ),
    "two on links held together": Broken(
        routing.one_transfer_at_a_time,
        changed(TOGETHER, transfer=1, start_s=2.0, end_s=6.0),
        "link contention",
        "link 'a' → 'r' carries 'x' until 4 s, but 'y' starts on it at 2 s",
    ),
}

COUNTED = {
    "footprints above capacity": Broken(
        memory.capacities,
        smaller(CROSSING, 23),
        "eq. 13 memory",
        "device 'a' needs 24 B (24 bytes); it has 23 B (23 bytes)",
    ),
    "live peak above capacity": Broken(
        memory.capacities,
        smaller(ALIVE, 36),
        "eq. 13 memory",
        "device 'a' needs 37 B (37 bytes); it has 36 B (36 bytes)",
    ),
    "reported peak": Broken(
        memory.reported_peaks,
        reporting(CROSSING, "a", 100, 25),
        "eq. 13 memory",
        "device 'a': the plan reports 25 bytes; they are 24",
    ),
    "reported capacity": Broken(
        memory.reported_peaks,
        reporting(CROSSING, "a", None, 24),
        "eq. 13 memory",
        "device 'a': the plan reports a capacity of unlimited; the topology says 100 bytes",
    ),
    "memory of no device": Broken(
        memory.reported_peaks,
        reporting(CROSSING, "z", 100, 0),
        "eq. 13 memory",
        "the plan reports memory of 'z', which is no device of the topology",
    ),
    "makespan": Broken(
        arithmetic.makespan,
        replace(CROSSING, makespan_s=7.5, lower_bound_s=7.5),
        "makespan",
        "the plan says 7.5 s; its last op ends at 8 s",
    ),
    "bound above the makespan": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=9.0),
        "lower bound",
        "9 s is above the makespan of 8 s",
        also=("gap",),
    ),
    "gap": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=6.0, gap=0.1, status="feasible"),
        "gap",
        "the plan says 0.1; makespan and bound give 0.25",
    ),
    "gap that rounding does not explain": Broken(
        arithmetic.bound_and_gap,
        # 1 s of 8 s may be hidden: 0.125, not 0.25.
        replace(CROSSING, lower_bound_s=6.0, rounding_s=1.0),
        "gap",
        "the plan says 0; makespan and bound give 0.25, rounding hides 0.13",
    ),
    "optimal with a gap": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=6.0, gap=0.25),
        "status",
        "the plan calls itself optimal with a gap of 0.25",
    ),
}

BROKEN = PLACED | TIMED | ON_THE_WAY | COUNTED


@pytest.mark.parametrize("name", plans.RIGHT)
def test_right_plans_pass(name: str) -> None:
    assert violations(plans.RIGHT[name]) == ()
    check(plans.RIGHT[name])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_reported_by_its_name_with_the_numbers(name: str) -> None:
    case = BROKEN[name]
    found = violations(case.plan)
    assert {violation.rule for violation in found} == {case.name, *case.also}
    assert any(case.message in violation.message for violation in found if violation.rule == case.name)
    assert case.name in {violation.rule for violation in case.rule(case.plan)}


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in PLACED and not BROKEN[name].also])
def test_no_other_rule_reports_it(name: str) -> None:
    case = BROKEN[name]
    assert [rule for rule in RULES if list(rule(case.plan))] == [case.rule]


def test_every_rule_is_broken_by_some_plan() -> None:
    assert {case.rule for case in BROKEN.values()} == set(RULES)


def test_check_raises_with_every_violation() -> None:
    wrong = replace(changed(CROSSING, "y", end_s=9.0), lower_bound_s=10.0, transfers=())
    with pytest.raises(CheckError, match=r"^the plan breaks the rules:\n  duration: op 'y' lasts 4 s") as caught:
        check(wrong)
    assert caught.value.violations == tuple(map(str, violations(wrong)))
    assert {line.partition(":")[0] for line in caught.value.violations} == {
        "duration",
        "eq. 8 transfers",
        "lower bound",
        "gap",
    }


def test_what_is_placed_nowhere_is_all_that_is_reported() -> None:
    wrong = replace(changed(CROSSING, "y", device="z"), makespan_s=77.0, transfers=())
    assert {violation.rule for violation in violations(wrong)} == {"eq. 7 placement"}


def test_phases_that_are_not_given_count_as_forward() -> None:
    late = with_op(TRAINED, "h", phase=None)
    assert violations(late) == ()
    assert {violation.rule for violation in violations(changed(late, "g", start_s=2.0, end_s=3.0))} == {
        "barrier at the loss"
    }


def test_without_the_barrier_backward_ops_may_start_early() -> None:
    early = changed(TRAINED, "g", start_s=2.0, end_s=3.0)
    assert violations(replace(early, options=replace(early.options, step="joint"))) == ()


def test_without_contention_transfers_may_overlap() -> None:
    together = changed(CONTENDED, transfer=1, start_s=2.0, end_s=4.0)
    assert violations(replace(together, options=replace(together.options, contention="none"))) == ()


def way_delay_s(topology: Topology, way: list[str], delay: str) -> float:
    """The delay of 20 bytes by way of some nodes, straight from the definitions."""
    spent_s, segment = 0.0, []
    for hop in pairwise(way):
        link = topology.link_between[hop]
        segment.append(link.total_bytes_per_s)
        spent_s += link.latency_s + (20 / link.total_bytes_per_s if delay == "store-and-forward" else 0)
        if delay == "cut-through" and hop[1] in topology.device_index:
            spent_s += 20 / min(segment)
            segment = []
    return spent_s


@pytest.mark.parametrize("delay", CHOICES["delay"])
@pytest.mark.parametrize("seed", range(25))
def test_the_shortest_routes_are_those_of_least_delay_among_all_paths(delay: str, seed: int) -> None:
    random = Random(seed)
    pairs = [pair for pair in combinations("abcrs", 2) if random.random() < 0.7 or pair == ("a", "b")]
    links = [Link(a, b, random.choice([1, 2, 4, 20]), random.choice([0, 1, 2])) for a, b in pairs]
    topology = plans.machine(*links)
    assumed = plans.options(delay=delay, routing="shortest")
    ways = list(nx.all_simple_paths(topology.to_networkx(), "a", "b"))
    least_s = min(way_delay_s(topology, way, delay) for way in ways)
    for way in ways:
        stops = [position for position, name in enumerate(way) if name in topology.device_index]
        times = [2 + way_delay_s(topology, way[: stop + 1], delay) for stop in stops]
        parts = [
            ("".join(way[begin : end + 1]), *when)
            for (begin, end), when in zip(pairwise(stops), pairwise(times), strict=True)
        ]
        scheduled = [("x", "a", 0.0, 2.0), ("y", "b", times[-1], times[-1] + 3)]
        plan = plans.plan(SINGLE.graph, topology, assumed, scheduled, [sent("t", "x", 20, *parts)])
        longer = times[-1] - 2 > least_s + 1e-6
        assert {violation.rule for violation in violations(plan)} == ({"shortest route"} if longer else set())


@pytest.mark.parametrize("delay", CHOICES["delay"])
def test_free_routes_may_be_longer(delay: str) -> None:
    longer = plans.detour(delay, "arsb" if delay == "store-and-forward" else "ab")
    assert violations(replace(longer, options=replace(longer.options, routing="free"))) == ()


def test_rounding_may_hide_part_of_the_gap() -> None:
    # 2 s of 8 s are 0.25.
    assert violations(replace(CROSSING, lower_bound_s=6.0, rounding_s=2.0)) == ()


def test_times_are_compared_with_a_tolerance() -> None:
    # 1e-9 × (2 + 3 + 3 s of ops and transfer) = 8e-9 s
    assert tolerance_s(CROSSING) == pytest.approx(8e-9)
    assert violations(changed(CROSSING, "y", start_s=5.0 - 4e-9)) == ()
    assert len(violations(changed(CROSSING, "y", start_s=5.0 - 2e-8))) == 2


def test_the_tolerance_depends_on_the_types_of_the_machine_alone() -> None:
    times = MappingProxyType({"gpu": 3.0, "abacus": 1e9})
    assert tolerance_s(with_op(CROSSING, "y", time_s=times)) == tolerance_s(CROSSING)
    assert violations(with_op(CROSSING, "y", time_s=times)) == ()


def test_ops_of_no_time_still_leave_a_tolerance() -> None:
    assert 0 < tolerance_s(plans.all_zero()) < 1e-12


def test_memory_over_time() -> None:
    # The numbers of `plans.alive`; what ends makes room just before.
    assert live_bytes(ALIVE, "a") == approximately((0, 10), (0, 35), (2, 30), (2, 37), (3, 30), (5, 10))
    assert live_bytes(ALIVE, "b") == approximately((0, 0), (2, 20), (5, 24), (8, 0))
    assert used_bytes(ALIVE) == {"a": 37, "b": 24}


def approximately(*levels: tuple[float, int]) -> list[Any]:
    return [(pytest.approx(time_s, abs=1e-6), level) for time_s, level in levels]


def test_a_relay_holds_the_tensor_while_it_passes() -> None:
    relayed = plans.relayed(Options(step="joint"))
    # On a from the start of x to the end of the first segment; on b from 2 to 9 s, when it is at c; on c from 5 s, when
    # the last segment starts, to the end of y at 12 s, with its workspace of 5 from 9 s and gradient of 3 all the time.
    assert live_bytes(relayed, "a") == approximately((0, 4), (0, 24), (4, 4))
    assert live_bytes(relayed, "b") == approximately((0, 0), (2, 20), (9, 0))
    assert live_bytes(relayed, "c") == approximately((0, 3), (5, 23), (9, 28), (12, 3))


def test_rounded_times_do_not_stack_up_memory() -> None:
    # x ends at 0.1 + 0.2 = 0.30000000000000004 s, y starts at 0.3 s: they are not alive together.
    ops = (Op("x", "test", 0.1 + 0.2, workspace_bytes=60), Op("y", "test", 0.5, workspace_bytes=60))
    scheduled = [("x", "a", 0.0, 0.1 + 0.2), ("y", "a", 0.3, 0.8)]
    plan = plans.plan(OpGraph(ops), plans.machine(), Options(step="joint"), scheduled, memory={"a": 60})
    assert violations(plan) == ()


NAMES, NODES = st.sampled_from(["x", "y", "t", "ghost"]), st.sampled_from(["a", "b", "c", "r", "nowhere"])
SECONDS = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0, 8.0, 1e300])
SEGMENTS = st.builds(Segment, st.lists(st.tuples(NODES, NODES), min_size=1, max_size=3).map(tuple), SECONDS, SECONDS)
TRANSFERS = st.builds(
    Transfer, NAMES, NAMES, NODES, st.integers(0, 30), st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple)
)
OPTIONS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_no_plan_is_too_wrong_to_be_checked(data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from([CROSSING, ROUTED, RELAYED, SHARED, ALIVE]))
    names = st.sampled_from([op.id for op in plan.graph.ops] + ["ghost"])
    ops = tuple(
        ScheduledOp(data.draw(names), data.draw(NODES), data.draw(SECONDS), data.draw(SECONDS)) for _ in plan.ops
    )
    wrong = replace(
        plan,
        options=Options(**data.draw(OPTIONS)),
        ops=data.draw(st.sampled_from([ops, plan.ops, plan.ops[::-1]])),
        transfers=tuple(data.draw(st.lists(TRANSFERS, max_size=3))),
        memory={data.draw(NODES): DeviceMemory(None, 1)},
        makespan_s=data.draw(SECONDS),
    )
    for violation in violations(wrong):
        assert violation.rule
        assert violation.message


@pytest.mark.parametrize("memory_rule", ["live", "sum"])
def test_large_plans_are_checked_quickly(memory_rule: str) -> None:
    # A chain of 3,000 ops of 1 s; every third edge crosses to the other device and takes 4 B ÷ 4 B/s = 1 s.
    names = [f"op{i}" for i in range(3000)]
    graph = OpGraph(
        tuple(Op(name, "test", 1, output_bytes=4, workspace_bytes=1) for name in names),
        tuple(Edge(before, after, 4) for before, after in pairwise(names)),
    )
    now, here, scheduled, transfers = 0.0, "a", [], []
    for position, name in enumerate(names):
        if position % 3 == 2:
            there = "b" if here == "a" else "a"
            way = (here + there, now, now + 1)
            transfers.append(sent(f"{names[position - 1]}:0->{name}", names[position - 1], 4, way))
            now, here = now + 1, there
        scheduled.append((name, here, now, now + 1))
        now += 1
    plan = plans.plan(
        graph, plans.machine(Link("a", "b", 4)), plans.options(memory=memory_rule), scheduled, transfers, None
    )
    assert len(transfers) == 1000
    began = time.monotonic()
    assert {violation.rule for violation in violations(plan)} == ({"eq. 13 memory"} if memory_rule == "sum" else set())
    assert time.monotonic() - began < 3
    # Alive at once: an output, the next one or its copy, and workspace.
    assert memory_rule == "sum" or used_bytes(plan) == {"a": 9, "b": 9}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_plans_hold_finite_numbers(value: float) -> None:
    with pytest.raises(InputError, match=r"op 'x': end_s is -?(nan|inf); it must be finite"):
        ScheduledOp("x", "a", 0.0, value)
    with pytest.raises(InputError, match=r"segment over \[\('a', 'b'\)\]: start_s is"):
        Segment((("a", "b"),), value, 1.0)
    with pytest.raises(InputError, match="the plan: gap is"):
        replace(CROSSING, gap=value)


def test_plans_hold_transfers_that_go_somewhere() -> None:
    with pytest.raises(InputError, match="a segment has no links; name the links that it travels"):
        Segment((), 0.0, 1.0)
    with pytest.raises(InputError, match="the transfer of 't' to 'b' has no segments; give it a route"):
        Transfer("t", "x", "b", 4, ())


def test_plans_are_optimal_or_feasible() -> None:
    with pytest.raises(InputError, match="the plan's status is 'perfect'; use one of optimal, feasible"):
        replace(CROSSING, status="perfect")


def test_views_of_a_plan() -> None:
    assert CROSSING.placement == {"x": "a", "y": "b"}
    assert CROSSING.scheduled["y"] is CROSSING.ops[1]
    assert CONTENDED.order == {"a": ("x", "y", "m"), "b": ("k", "u", "v")}
    assert (RELAYED.transfers[0].start_s, RELAYED.transfers[0].end_s) == (2, 9)
