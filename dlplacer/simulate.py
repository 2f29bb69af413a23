"""Replays a placement and an order: every op as early as they allow, in seconds.

The same replay gives a solver's schedule its exact times and predicts an old plan under newly measured costs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from dlplacer.errors import MismatchError
from dlplacer.graph import OpGraph
from dlplacer.plan import Plan, ScheduledOp, Segment, Transfer
from dlplacer.problem import Problem, build_problem
from dlplacer.routes import segments
from dlplacer.topology import Topology


def replay(
    problem: Problem, device: Sequence[int], order: Iterable[int]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers with their earliest times (eq. 10–12), without contention.

    Parameters
    ----------
    device
        [op] → position of its device.
    order
        All ops, each after what it reads; it decides the order on every device.
    """
    graph, topology = problem.graph, problem.topology
    free_s = [0.0] * problem.device_count
    end_s = [0.0] * problem.op_count
    done, transfers = [], []
    for position in order:
        op, here = graph.ops[position], device[position]
        start_s = free_s[here]
        for edge, arc in zip(graph.edges_into[op.id], problem.arcs_into[position], strict=True):
            ready_s = end_s[arc.source]
            if device[arc.source] != here:
                pair = topology.devices[device[arc.source]].id, topology.devices[here].id
                sent = _transfer(problem, edge.tensor, edge.source, pair, arc.size, ready_s)
                transfers.append(sent)
                ready_s = sent.end_s
            start_s = max(start_s, ready_s)
        end_s[position] = free_s[here] = start_s + (op.time_on(topology.devices[here].type) or 0.0)
        done.append(ScheduledOp(op.id, topology.devices[here].id, start_s, end_s[position]))
    return tuple(done), tuple(transfers)


def replay_plan(plan: Plan, graph: OpGraph, topology: Topology) -> Plan:
    """The same placement and order under the costs of another graph and topology; without bound and gap.

    The graph has the plan's ops; the topology has as many devices, which stand for the plan's in order.

    Raises
    ------
    MismatchError
        If the device counts or the ops differ.
    """
    if len(topology.devices) != len(plan.topology.devices):
        raise MismatchError(
            f"the plan has {len(plan.topology.devices)} devices, the machine {len(topology.devices)}; they must match"
        )
    missing = [scheduled.op for scheduled in plan.ops if scheduled.op not in graph.index]
    if missing or len(graph.ops) != len(plan.ops):
        raise MismatchError(f"the plan's ops are not those of the graph; the first that differs is {missing[:1]}")
    problem = build_problem(graph, topology, plan.options)
    position = plan.topology.device_index
    device = [position[plan.placement[op.id]] for op in graph.ops]
    ops, transfers = replay(problem, device, [graph.index[scheduled.op] for scheduled in in_order(plan)])
    return replace(
        plan,
        graph=graph,
        topology=topology,
        status="feasible",
        makespan_s=max(entry.end_s for entry in ops),
        lower_bound_s=0.0,
        gap=1.0,
        rounding_s=0.0,
        ops=ops,
        transfers=transfers,
        memory={},
    )


def in_order(plan: Plan) -> list[ScheduledOp]:
    """The plan's ops, each after what it reads, every device's in the plan's order.

    Start times alone cannot tell the order of ops that take no time, so dependencies and device order decide.
    """
    waits = {op.id: len(plan.graph.edges_into[op.id]) for op in plan.graph.ops}
    queues = {device: list(reversed(ops)) for device, ops in plan.order.items()}
    done: list[ScheduledOp] = []
    moved = True
    while moved:
        moved = False
        for queue in queues.values():
            while queue and not waits[queue[-1]]:
                name = queue.pop()
                done.append(plan.scheduled[name])
                for edge in plan.graph.edges_from[name]:
                    waits[edge.target] -= 1
                moved = True
    if len(done) < len(plan.ops):
        stuck = next(queue[-1] for queue in queues.values() if queue)
        raise MismatchError(f"the plan's order cannot run: op {stuck!r} comes before an op that it depends on")
    return done


def _transfer(problem: Problem, tensor: str, source: str, pair: tuple[str, str], size: int, start_s: float) -> Transfer:
    size_bytes = problem.sizes_bytes[size]
    parts = []
    for stretch in segments(problem.topology, problem.routes[size][pair]):
        hops = tuple(pairwise(stretch))
        links = [problem.topology.link_between[hop] for hop in hops]
        end_s = start_s + sum(size_bytes / link.total_bytes_per_s + link.latency_s for link in links)
        parts.append(Segment(hops, start_s, end_s))
        start_s = end_s
    return Transfer(tensor, source, pair[1], size_bytes, tuple(parts))
