"""A schedule in ticks becomes a plan in seconds.

Ticks only decide placement and order. Start times are computed anew in seconds, every op as early as that placement
and order allow, so that a plan is exact even where ticks are rounded.
"""

from collections.abc import Mapping
from typing import Any

from dlplacer.plan import DeviceMemory, Plan, ScheduledOp, Segment, Transfer
from dlplacer.problem import Problem
from dlplacer.routes import segments
from dlplacer.solvers.schedule import Outcome, Schedule


def assemble(
    problem: Problem, outcome: Outcome, schedule: Schedule, method: str, solve_s: float, provenance: Mapping[str, Any]
) -> Plan:
    """The plan of a schedule, with its transfers, memory and gap (eq. 7–13)."""
    ops, transfers = _timed(problem, schedule)
    bound = min(outcome.lower_bound, schedule.makespan)
    makespan_s = max(entry.end_s for entry in ops)
    lower_bound_s = min(float(bound * problem.tick_s), makespan_s)
    gap = (schedule.makespan - bound) / schedule.makespan if schedule.makespan else 0.0
    return Plan(
        graph=problem.graph,
        topology=problem.topology,
        options=problem.options,
        status="optimal" if bound == schedule.makespan else "feasible",
        makespan_s=makespan_s,
        lower_bound_s=lower_bound_s,
        gap=gap,
        rounding_s=max(0.0, makespan_s - float(schedule.makespan * problem.tick_s)),
        method=method,
        solve_s=solve_s,
        ops=tuple(ops),
        transfers=tuple(transfers),
        memory=_memory(problem, schedule),
        provenance=provenance,
    )


def _timed(problem: Problem, schedule: Schedule) -> tuple[list[ScheduledOp], list[Transfer]]:
    graph, topology = problem.graph, problem.topology
    rank = {op: position for position, op in enumerate(problem.topological)}
    order = sorted(range(problem.op_count), key=lambda op: (schedule.start[op], schedule.end[op], rank[op]))
    free_s = [0.0] * problem.device_count
    end_s = [0.0] * problem.op_count
    done, transfers = [], []
    for position in order:
        op, device = graph.ops[position], schedule.device[position]
        start_s = free_s[device]
        for edge, arc in zip(graph.edges_into[op.id], problem.arcs_into[position], strict=True):
            ready_s = end_s[arc.source]
            origin = schedule.device[arc.source]
            if origin != device:
                pair = topology.devices[origin].id, topology.devices[device].id
                sent = _transfer(problem, edge.tensor, edge.source, pair, arc.size, ready_s)
                transfers.append(sent)
                ready_s = sent.end_s
            start_s = max(start_s, ready_s)
        end_s[position] = free_s[device] = start_s + (op.time_on(topology.devices[device].type) or 0.0)
        done.append(ScheduledOp(op.id, topology.devices[device].id, start_s, end_s[position]))
    return done, transfers


def _transfer(
    problem: Problem, tensor: str, source: str, pair: tuple[str, str], size: int, start_s: float
) -> Transfer:
    size_bytes = problem.sizes_bytes[size]
    parts = []
    for stretch in segments(problem.topology, problem.routes[size][pair]):
        hops = tuple(zip(stretch, stretch[1:], strict=False))
        links = [problem.topology.link_between[hop] for hop in hops]
        end_s = start_s + sum(size_bytes / link.total_bytes_per_s + link.latency_s for link in links)
        parts.append(Segment(hops, start_s, end_s))
        start_s = end_s
    return Transfer(tensor, source, pair[1], size_bytes, tuple(parts))


def _memory(problem: Problem, schedule: Schedule) -> dict[str, DeviceMemory]:
    used = [0] * problem.device_count
    for op, device in enumerate(schedule.device):
        used[device] += problem.footprint_bytes[op]
    return {
        device.id: DeviceMemory(device.memory_bytes, used[position])
        for position, device in enumerate(problem.topology.devices)
    }
