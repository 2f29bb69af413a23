"""Replays a placement and an order: every op as early as they allow, in seconds.

The same replay gives a solver's schedule its exact times and predicts an old plan under newly measured costs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Topology
from dlplacer.problem.dispatch import issue_times
from dlplacer.problem.link_clock import Network
from dlplacer.problem.problem import Problem, build_problem


def replay(
    problem: Problem, device: Sequence[int], order: Iterable[int], dispatch_s: float = 0.0, handover_s: float = 0.0
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers with their earliest times (eq. 10–12), under the problem's options.

    Time runs forward: when an op ends, its tensors leave at once, in the order of their first readers; where links are
    contended, first come is first served.

    Parameters
    ----------
    device
        [op] → position of its device.
    order
        All ops; it decides the order on every device. Under ``step: autograd`` a device's forward ops come first.
    dispatch_s
        Seconds in which the one process that feeds all devices issues an op; see `dlplacer.problem.dispatch`.
    handover_s
        Seconds for which a device is busy with every tensor that it sends (once to each other device, behind the op
        that makes it) or receives (before its first reader there): cores do this themselves.

    Raises
    ------
    MismatchError
        If the order cannot run: an op waits for one behind it on the same device, or devices wait for each other.
    """
    clock = _Clock(problem, device, list(order), dispatch_s, handover_s)
    while clock.running:
        clock.finish_next()
    if len(clock.done) < problem.op_count:
        stuck = next(queue[-1] for queue in clock.queues if queue)
        name = problem.graph.ops[stuck].id
        raise MismatchError(f"the order cannot run: op {name!r} comes before an op that it depends on")
    return tuple(clock.done), tuple(clock.transfers)


class _Clock:
    """The state of a replay: what runs, what is waited for, what is done."""

    def __init__(
        self, problem: Problem, device: Sequence[int], order: Sequence[int], dispatch_s: float, handover_s: float
    ) -> None:
        self.problem, self.device, self.handover_s = problem, device, handover_s
        self.rank = {op: position for position, op in enumerate(order)}
        later = {op for op in order if problem.graph.ops[op].phase in ("backward", "optimizer")}
        self.behind_barrier = later if problem.options.step == "autograd" else set()
        self.before_barrier = problem.op_count - len(self.behind_barrier)
        self.queues: list[list[int]] = [[] for _ in range(problem.device_count)]
        for op in sorted(order, key=lambda op: (op in self.behind_barrier, self.rank[op]), reverse=True):
            self.queues[device[op]].append(op)
        self.issued_s = self._issued(dispatch_s) if dispatch_s else [0.0] * problem.op_count
        self.waits = [len(arcs) for arcs in problem.arcs_into]
        self.ready_s = [0.0] * problem.op_count
        self.sends, self.receives = self._handovers()
        self.free_s = [0.0] * problem.device_count
        self.barrier_s = 0.0
        self.network = Network(problem)
        self.running: list[tuple[float, int, int]] = []
        self.done: list[ScheduledOp] = []
        self.transfers: list[Transfer] = []
        for here in range(problem.device_count):
            self._start_ready(here)

    def finish_next(self) -> None:
        """Take the op that ends next: send its tensors, and start what now can."""
        now_s, _, op = heappop(self.running)
        here = self.device[op]
        touched = {here}
        arrived: dict[tuple[str, int], float] = {}
        leaves_s = {pair: now_s + self.handover_s * (1 + number) for number, pair in enumerate(self.sends[op])}
        graph, arcs = self.problem.graph, self.problem.arcs_from[op]
        outgoing = zip(graph.edges_from[graph.ops[op].id], arcs, strict=True)
        for edge, arc in sorted(outgoing, key=lambda entry: self.rank[entry[1].target]):
            there = self.device[arc.target]
            arrival_s = now_s if there == here else arrived.get((edge.tensor, there))
            if arrival_s is None:
                pair = self._name(here), self._name(there)
                sent = self.network.send(edge.tensor, edge.source, pair, arc.size, leaves_s[edge.tensor, there])
                self.transfers.append(sent)
                arrival_s = sent.end_s
                if self.problem.options.transfers == "device":
                    arrived[edge.tensor, there] = arrival_s
            self.waits[arc.target] -= 1
            self.ready_s[arc.target] = max(self.ready_s[arc.target], arrival_s)
            touched.add(there)
        if op not in self.behind_barrier:
            self.before_barrier -= 1
            self.barrier_s = now_s
            if not self.before_barrier:
                touched.update(range(self.problem.device_count))
        for there in sorted(touched):
            self._start_ready(there)

    def _start_ready(self, here: int) -> None:
        queue = self.queues[here]
        while queue and not self.waits[queue[-1]]:
            op = queue[-1]
            if op in self.behind_barrier and self.before_barrier:
                return
            queue.pop()
            node, kind = self.problem.graph.ops[op], self.problem.topology.devices[here].type
            gate_s = self.issued_s[op] + (self.barrier_s if op in self.behind_barrier else 0.0)
            free_s = self.free_s[here] + self.handover_s * self.receives[op]
            start_s = max(free_s, self.ready_s[op], gate_s)
            end_s = start_s + (node.time_on(kind) or 0.0)
            self.free_s[here] = end_s + self.handover_s * len(self.sends[op])
            self.done.append(ScheduledOp(node.id, self._name(here), start_s, end_s))
            heappush(self.running, (end_s, self.rank[op], op))

    def _handovers(self) -> tuple[list[list[tuple[str, int]]], list[int]]:
        """[op] → tensors that it sends, each with the device; [op] → how many it is the first there to read."""
        graph = self.problem.graph
        sends: list[list[tuple[str, int]]] = [[] for _ in graph.ops]
        receives = [0] * len(graph.ops)
        for op, made in enumerate(sends):
            outgoing = zip(graph.edges_from[graph.ops[op].id], self.problem.arcs_from[op], strict=True)
            for edge, arc in sorted(outgoing, key=lambda entry: self.rank[entry[1].target]):
                there = self.device[arc.target]
                if there != self.device[op] and (edge.tensor, there) not in made:
                    made.append((edge.tensor, there))
                    receives[arc.target] += 1
        return sends, receives

    def _issued(self, dispatch_s: float) -> list[float]:
        """[op] → when it has been issued; behind a barrier counted from there, since the host waits for it."""
        queues = [list(reversed(queue)) for queue in self.queues]
        parts = [[[op for op in queue if (op in self.behind_barrier) == later] for queue in queues] for later in (0, 1)]
        first, second = (issue_times(self.problem, self.device, part, dispatch_s) for part in parts)
        return [max(times) for times in zip(first, second, strict=True)]

    def _name(self, device: int) -> str:
        return self.problem.topology.devices[device].id


def replay_plan(
    plan: Plan, graph: OpGraph, topology: Topology, dispatch_s: float = 0.0, handover_s: float = 0.0
) -> Plan:
    """The same placement and order under the costs of another graph and topology; without bound and gap.

    The graph has the plan's ops; the topology has as many devices, which stand for the plan's in order. `replay` says
    what the other arguments are.

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
    if topology.device_index != plan.topology.device_index:
        # Pins name the plan's devices; its placement keeps them, whatever the machine calls its own.
        graph = replace(graph, constraints=Constraints())
    problem = build_problem(graph, topology, plan.options)
    position = plan.topology.device_index
    device = [position[plan.placement[op.id]] for op in graph.ops]
    order = [graph.index[scheduled.op] for scheduled in in_order(plan)]
    ops, transfers = replay(problem, device, order, dispatch_s, handover_s)
    makespan_s = max(entry.end_s for entry in ops)
    return replace(
        plan,
        graph=graph,
        topology=topology,
        status="feasible",
        makespan_s=makespan_s,
        lower_bound_s=0.0,
        gap=1.0 if makespan_s else 0.0,
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
