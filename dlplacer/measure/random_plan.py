"""Plans with random placement and order: what a runtime must get right, however bad they are."""

import random
from dataclasses import replace

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay

_OP_S = 1e-4


def random_plan(graph: OpGraph, topology: Topology, seed: int) -> Plan:
    """A plan that puts every op, or group of ops, on a random device, in a random order that dependencies allow.

    Its times mean nothing: every op that computes takes as long as any other.
    """
    chooser = random.Random(seed)
    devices = range(len(topology.devices))
    ops = tuple(replace(op, time_s=_OP_S if op.dtype else 0.0) for op in graph.ops)
    timed = replace(graph, ops=ops)
    problem = build_problem(timed, topology, Options(contention="none", step="joint"))
    of_group: dict[str, int] = {}
    device = []
    for op in timed.ops:
        drawn = chooser.choice(devices)
        device.append(drawn if op.colocate is None else of_group.setdefault(op.colocate, drawn))
    scheduled, transfers = replay(problem, device, _random_order(timed, chooser))
    makespan_s = max(entry.end_s for entry in scheduled)
    return Plan(
        timed, topology, problem.options, "feasible", makespan_s, 0.0, 1.0, 0.0, "random", 0.0, scheduled, transfers
    )


def _random_order(graph: OpGraph, chooser: random.Random) -> list[int]:
    waits = {op.id: len(graph.edges_into[op.id]) for op in graph.ops}
    ready = [name for name, count in waits.items() if not count]
    order = []
    while ready:
        name = ready.pop(chooser.randrange(len(ready)))
        order.append(graph.index[name])
        for edge in graph.edges_from[name]:
            waits[edge.target] -= 1
            if not waits[edge.target]:
                ready.append(edge.target)
    return order
