"""A schedule in ticks becomes a plan in seconds that `check` accepts."""

from collections.abc import Sequence
from fractions import Fraction
from random import Random

import pytest

from dlplacer.check import check_plan
from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp, TransferSegment
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule


def problem_of(ops: Sequence[Op], edges: Sequence[Edge], topology: Topology) -> Problem:
    return build_problem(OpGraph(tuple(ops), tuple(edges)), topology, Options.paper())


def plan_of(problem: Problem, device: Sequence[int], start: Sequence[int], bound: int = 0) -> Plan:
    schedule = ProblemSchedule(problem, tuple(device), tuple(start))
    plan = assemble(problem, Outcome(schedule, bound), schedule, "by hand", 0.5, {"seed": 7})
    check_plan(plan)
    return plan


def line(*links: Link) -> Topology:
    """Devices a, b, c, and router r, as far as the links name them."""
    names = {name for link in links for name in (link.source, link.target)}
    devices = tuple(Device(name, memory_bytes=100) for name in "abc" if name in names)
    return Topology(devices, (Router("r"),) if "r" in names else (), links)


def early(problem: Problem, device: Sequence[int]) -> list[int]:
    """Start ticks of a schedule that runs the ops in topological order, each as early as it can."""
    start, end, free = [0] * problem.op_count, [0] * problem.op_count, [0] * problem.device_count
    for op in problem.topological:
        begin = free[device[op]]
        for arc in problem.arcs_into[op]:
            delay = problem.delay[arc.size][device[arc.source]][device[op]]
            assert delay is not None
            begin = max(begin, end[arc.source] + delay)
        start[op], end[op] = begin, begin + (problem.duration[op][device[op]] or 0)
        free[device[op]] = end[op]
    return start


def test_two_devices_and_a_router() -> None:
    # x on a ends at 2 s; 6 bytes take 6 / 3 + 1 s to r and 6 / 2 s on to b, 6 s in all; y on b takes 1 s.
    topology = line(Link("a", "r", 3, 1), Link("r", "b", 2))
    problem = problem_of([Op("x", "test", 2), Op("y", "test", 1)], [Edge("x", "y", 6, tensor="t")], topology)
    plan = plan_of(problem, device=[0, 1], start=[0, 8], bound=9)
    assert plan.ops == (ScheduledOp("x", "a", 0.0, 2.0), ScheduledOp("y", "b", 8.0, 9.0))
    (transfer,) = plan.transfers
    assert (transfer.tensor, transfer.source, transfer.target, transfer.bytes) == ("t", "x", "b", 6)
    assert transfer.segments == (TransferSegment((("a", "r"), ("r", "b")), 2.0, 8.0),)
    assert (plan.status, plan.makespan_s, plan.lower_bound_s, plan.gap) == ("optimal", 9.0, 9.0, 0.0)
    assert (plan.method, plan.solve_s, plan.rounding_s, plan.provenance) == ("by hand", 0.5, 0.0, {"seed": 7})


def test_a_relay_ends_a_segment() -> None:
    # a and c are joined by way of b alone: 4 bytes take 2 s to b and 4 s on to c.
    problem = problem_of(
        [Op("x", "test", 1), Op("y", "test", 1)], [Edge("x", "y", 4)], line(Link("a", "b", 2), Link("b", "c", 1))
    )
    plan = plan_of(problem, device=[0, 2], start=[0, 7])
    (transfer,) = plan.transfers
    assert transfer.segments == (TransferSegment((("a", "b"),), 1.0, 3.0), TransferSegment((("b", "c"),), 3.0, 7.0))
    assert plan.makespan_s == 8.0


def test_the_gap_is_that_of_the_ticks() -> None:
    problem = problem_of([Op("x", "test", 3), Op("y", "test", 1)], [], line(Link("a", "b", 1)))
    plan = plan_of(problem, device=[0, 0], start=[0, 3], bound=3)
    assert (plan.status, plan.makespan_s, plan.lower_bound_s, plan.gap) == ("feasible", 4.0, 3.0, 0.25)


def test_rounded_ticks_are_reported() -> None:
    # 1.4 ns, 1.3 ns and 1 s + 1 ps have no common unit that is long enough; in ticks of 1 ns each is rounded down.
    ops = [Op("x", "test", 1.4e-9), Op("y", "test", 1.3e-9), Op("z", "test", 1 + 1e-12)]
    problem = problem_of(ops, [Edge("x", "y", 0)], line(Link("a", "b", 1)))
    assert problem.tick_s == Fraction(1, 10**9)
    plan = plan_of(problem, device=[0, 0, 1], start=[0, 1, 0], bound=problem.duration[2][1] or 0)
    assert plan.makespan_s == 1 + 1e-12
    assert 0 < plan.rounding_s < 3e-9
    assert (plan.status, plan.gap) == ("optimal", 0.0)
    assert plan.lower_bound_s <= plan.makespan_s


@pytest.mark.parametrize("seed", range(5))
def test_random_schedules_become_right_plans(seed: int) -> None:
    random = Random(seed)
    count = random.randint(2, 9)
    times = [random.choice([0, 0, 1e-3, 2.5e-3, random.random() * 1e-2]) for _ in range(count)]
    ops = [Op(f"k{i}", "test", time_s, output_bytes=random.randint(0, 5)) for i, time_s in enumerate(times)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count) if random.random() < 0.4]
    edges = [Edge(f"k{i}", f"k{j}", random.choice([0, 1000, random.randint(1, 10**6)])) for i, j in pairs]
    links = [Link("a", "b", 1e9, 1e-6), Link("b", "r", random.choice([1e8, 3e8]))]
    problem = problem_of(ops, edges, line(*links, Link("r", "c", 1e8, random.choice([0, 1e-7]))))
    device = [random.randrange(3) for _ in range(count)]
    schedule = early(problem, device)
    makespan = ProblemSchedule(problem, tuple(device), tuple(schedule)).makespan
    plan = plan_of(problem, device, schedule, bound=random.randint(0, makespan))
    assert plan.placement == {f"k{i}": "abc"[device[i]] for i in range(count)}
    assert plan.rounding_s <= (2 * count + len(edges)) * float(problem.tick_s)


# Ops of 2 s and 3 s on one GPU, issued in 0.5 s: they end at 5.5 s, which bounds of 5 s do not reach and 6 s exceed.
def test_a_bound_above_a_plan_under_dispatch_is_an_internal_error() -> None:
    topology = Topology((Device("a", dispatch_s=0.5),), (), ())
    problem = problem_of([Op("x", "test", 2), Op("y", "test", 3)], [], topology)
    assert problem.tick_s == 1
    schedule = ProblemSchedule(problem, (0, 0), (0, 2))
    plan = plan_of(problem, device=[0, 0], start=[0, 2], bound=5)
    assert (plan.makespan_s, plan.lower_bound_s, plan.gap, plan.status) == (5.5, 5.0, 0.5 / 5.5, "feasible")
    with pytest.raises(InternalError, match=r"lower bound of 6 s is above the makespan of 5\.5 s of a plan"):
        assemble(problem, Outcome(schedule, 6), schedule, "by hand", 0.5, {})
