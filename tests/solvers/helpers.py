"""Short ways to write graphs and machines in tests, and the rules of a schedule in ticks."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.ilp.assignment_model import find_placement
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Budget, Incumbent, Outcome, Schedule
from dlplacer.solvers.instance.time_limit import counting_work
from dlplacer.solvers.methods import METHODS, start_of
from dlplacer.solvers.starts import StartSearch


def make_graph(
    times: Mapping[str, float | Mapping[str, float]],
    edges: Sequence[tuple[str, str, int]] = (),
    **fields: Mapping[str, object],
) -> OpGraph:
    """Ops with times in seconds, edges with bytes; ``output_bytes={"a": 3}`` sets that field of op a."""
    ops = []
    for name, time_s in times.items():
        more = {field: values[name] for field, values in fields.items() if name in values}
        ops.append(Op(name, "test", time_s=time_s, **more))
    return OpGraph(tuple(ops), tuple(Edge(a, b, size) for a, b, size in edges))


def make_machine(count: int, memory: int | None = None, rate: float = 1.0, latency_s: float = 0.0) -> Topology:
    """Identical devices d0, d1, …, every two joined by a link of `rate` bytes per second."""
    devices = tuple(Device(f"d{i}", memory_bytes=memory) for i in range(count))
    links = tuple(Link(f"d{i}", f"d{j}", rate, latency_s) for j in range(count) for i in range(j))
    return Topology(devices, (), links)


def make_problem(graph: OpGraph, topology: Topology) -> Problem:
    """The problem under the paper's options."""
    return build_problem(graph, topology, Options.paper())


def packed_blocks(problem: Problem) -> list[int] | None:
    """[block] → device of a placement within memory; None if there is none."""
    placement = find_placement(problem, 10.0)[1]
    members = build_instance(problem).members
    return None if placement is None else [placement[ops[0]] if ops[0] < problem.op_count else 0 for ops in members]


def make_instance(graph: OpGraph, topology: Topology) -> Instance:
    """The instance under the paper's options."""
    return build_instance(make_problem(graph, topology))


def one_worker(seconds: float = 60.0, gap: float = 0.0) -> Budget:
    """A budget with one worker and plenty of time."""
    return Budget(time.monotonic() + seconds, gap=gap, workers=1)


def outcome_by_work(problem: Problem, method: str = "ilp") -> Outcome:
    """The outcome of a method with work in place of time, so that phases with a share of it to themselves end soon."""
    with counting_work():
        return METHODS[method](problem, Budget(20.0, workers=1))


def no_bounds(instance: Instance) -> Bounds:
    """Bounds that say nothing, so that a model has to stand on its own."""
    nothing = (0,) * instance.op_count
    return Bounds(0, nothing, nothing)


def broken_rules(instance: Instance, schedule: Schedule) -> list[str]:
    """The rules of eq. 7, 10, 12 and 13 that a schedule breaks."""
    device, start = schedule.device, schedule.start
    end = [begin + instance.duration[op][device[op]] for op, begin in enumerate(start)]
    broken = [f"op {op} before 0" for op in range(instance.op_count) if start[op] < 0]
    broken += [f"op {op} not allowed" for op in range(instance.op_count) if device[op] not in instance.allowed[op]]
    for ops in instance.members:
        broken += [f"block {ops} torn" for op in ops if device[op] != device[ops[0]]]
    for number, capacity in enumerate(instance.capacity):
        used = sum(
            size for size, ops in zip(instance.footprint, instance.members, strict=True) if device[ops[0]] == number
        )
        broken += [f"device {number} holds {used}"] if capacity is not None and used > capacity else []
    for op in range(instance.op_count):
        for source, delay in instance.predecessors[op]:
            if start[op] < end[source] + delay[device[source]][device[op]]:
                broken.append(f"op {op} before the data of {source}")
        for other in range(op):
            if device[op] == device[other] and end[op] > start[other] and end[other] > start[op]:
                broken.append(f"ops {other} and {op} overlap")
            elif device[op] == device[other] and (
                start[op] < start[other] == end[other] < end[op] or start[other] < start[op] == end[op] < end[other]
            ):
                broken.append(f"one of ops {other} and {op} is inside the other")
    if schedule.makespan != max(end):
        broken.append("wrong makespan")
    return broken


def broken_transfers(instance: Instance, schedule: Schedule) -> list[str]:
    """Readers that start too early, transfers that leave too early, and links that are used twice at a time."""
    traffic, broken = instance.traffic, []
    assert traffic is not None
    end = [begin + instance.duration[op][schedule.device[op]] for op, begin in enumerate(schedule.start)]
    there = {(send.request, send.target): send.end for send in schedule.transfers}
    uses: dict[int, list[tuple[int, int]]] = {}
    for send in schedule.transfers:
        ready = end[traffic.requests[send.request].source]
        for segment, begin in zip(send.route, send.start, strict=True):
            broken += [f"{send} too early"] if begin < ready else []
            ready = begin + segment.ticks
            for link, offset, ticks in segment.holds:
                uses.setdefault(link, []).append((begin + offset, begin + offset + ticks))
    for number, request in enumerate(traffic.requests):
        for op in request.readers:
            here = schedule.device[op]
            if here != schedule.device[request.source] and schedule.start[op] < there[number, here]:
                broken.append(f"op {op} before {request}")
    for link, times in uses.items():
        lasting = sorted(time for time in times if time[0] < time[1])
        broken += [f"link {link} at {b}" for a, b in pairwise(lasting) if b[0] < a[1]]
        moments = [begin for begin, until in times if begin == until]
        broken += [f"link {link} at {moment}" for moment in moments for a, b in lasting if a < moment < b]
    return broken


def found_by(problem: Problem, method: str) -> Schedule | None:
    """The schedule of a heuristic with all the time that it wants, as a method by itself."""
    instance = build_instance(problem)
    incumbent = Incumbent(Budget(inf), admission(problem, instance))
    StartSearch(problem, instance, incumbent, [start_of(method)]).run()
    return incumbent.best
