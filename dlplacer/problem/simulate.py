"""Replays a placement and an order: every op as early as they allow, in seconds.

The same replay gives a solver's schedule its exact times and predicts an old plan under newly measured costs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Topology
from dlplacer.problem.dispatch import Dispatch, dispatch_of, issue_times, with_one_process
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.routes import link_spans, segments


def replay(
    problem: Problem, device: Sequence[int], order: Iterable[int], dispatch_s: float = 0.0
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers with their earliest times (eq. 10–12), under the problem's options.

    Time runs forward: when an op ends, its tensors leave at once, in the order of their first readers; where links are
    contended, first come is first served. Ops wait for the processes that issue them, as the topology says
    (`dlplacer.problem.dispatch`).

    Parameters
    ----------
    device
        [op] → position of its device.
    order
        All ops; it decides the order of issues and on every device. Under ``step: autograd`` forward ops come first.
    dispatch_s
        If positive, seconds in which one process that feeds all devices issues an op, whatever the topology says.

    Raises
    ------
    MismatchError
        If the order cannot run: an op waits for one behind it on the same device, or devices wait for each other.
    """
    dispatch = dispatch_of(with_one_process(problem.topology, dispatch_s) if dispatch_s else problem.topology)
    clock = _Clock(problem, device, list(order), dispatch)
    while clock.running or clock.requests:
        clock.go_on()
    if len(clock.done) < problem.op_count:
        stuck = next(queue[-1] for queue in clock.queues if queue)
        name = problem.graph.ops[stuck].id
        raise MismatchError(f"the order cannot run: op {name!r} comes before an op that it depends on")
    return tuple(clock.done), tuple(clock.transfers)


class _Clock:
    """The state of a replay: running, waiting and finished ops."""

    def __init__(self, problem: Problem, device: Sequence[int], order: Sequence[int], dispatch: Dispatch) -> None:
        self.problem, self.device, self.dispatch = problem, device, dispatch
        self.rank = {op: position for position, op in enumerate(order)}
        later = {op for op in order if problem.graph.ops[op].phase in ("backward", "optimizer")}
        self.behind_barrier = later if problem.options.step == "autograd" else set()
        self.before_barrier = problem.op_count - len(self.behind_barrier)
        self.queues: list[list[int]] = [[] for _ in range(problem.device_count)]
        for op in sorted(order, key=lambda op: (op in self.behind_barrier, self.rank[op]), reverse=True):
            self.queues[device[op]].append(op)
        self.issued_s = issue_times(problem, device, order, dispatch, self.behind_barrier)
        self.waits = [len(arcs) for arcs in problem.arcs_into]
        self.ready_s = [0.0] * problem.op_count
        self.free_s = [0.0] * problem.device_count
        self.barrier_s = 0.0
        self.network = Network(problem)
        self.running: list[tuple[float, int, int]] = []
        # Ops that wait for the interpreter of their process, by the time at which they asked: one of a device at most.
        self.requests: list[tuple[float, int, int]] = []
        self.shares_interpreter = [dispatch.shares_interpreter(here) for here in range(problem.device_count)]
        self.asked = [False] * problem.device_count
        self.started_last: dict[int, tuple[int, float]] = {}
        self.done: list[ScheduledOp] = []
        self.transfers: list[Transfer] = []
        for here in range(problem.device_count):
            self._start_ready(here)

    def go_on(self) -> None:
        """Process the next event: an op ends, or gets the interpreter of its process."""
        if self.requests and not (self.running and self.running[0][0] <= self.requests[0][0]):
            self._grant_next()
        else:
            self._finish_next()

    def _grant_next(self) -> None:
        """Start the op that asked first, `dispatch_s` after the last start on another device of its process."""
        asked_s, _, op = heappop(self.requests)
        here = self.device[op]
        process = self.dispatch.process[here]
        other, started_s = self.started_last.get(process, (here, 0.0))
        start_s = asked_s if other == here else max(asked_s, started_s + self.dispatch.seconds[other])
        self.started_last[process] = here, start_s
        self.asked[here] = False
        self._start(op, start_s)
        self._start_ready(here)

    def _finish_next(self) -> None:
        """End the next op: send its tensors, and start the ops that can now run."""
        now_s, _, op = heappop(self.running)
        here = self.device[op]
        touched = {here}
        arrived: dict[tuple[str, int], float] = {}
        graph, arcs = self.problem.graph, self.problem.arcs_from[op]
        outgoing = zip(graph.edges_from[graph.ops[op].id], arcs, strict=True)
        for edge, arc in sorted(outgoing, key=lambda entry: self.rank[entry[1].target]):
            there = self.device[arc.target]
            arrival_s = now_s if there == here else arrived.get((edge.tensor, there))
            if arrival_s is None:
                pair = self._name(here), self._name(there)
                sent = self.network.send(edge.tensor, edge.source, pair, arc.size, now_s)
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
        while queue and not self.waits[queue[-1]] and not self.asked[here]:
            op = queue[-1]
            if op in self.behind_barrier and self.before_barrier:
                return
            queue.pop()
            gate_s = self.issued_s[op] + (self.barrier_s if op in self.behind_barrier else 0.0)
            start_s = max(self.free_s[here], self.ready_s[op], gate_s)
            if self.shares_interpreter[here] and self._time_s(op):
                self.asked[here] = True
                heappush(self.requests, (start_s, self.rank[op], op))
            else:
                self._start(op, start_s)

    def _start(self, op: int, start_s: float) -> None:
        here = self.device[op]
        end_s = start_s + self._time_s(op)
        self.free_s[here] = end_s
        self.done.append(ScheduledOp(self.problem.graph.ops[op].id, self._name(here), start_s, end_s))
        heappush(self.running, (end_s, self.rank[op], op))

    def _time_s(self, op: int) -> float:
        return self.problem.graph.ops[op].time_on(self.problem.topology.devices[self.device[op]].type) or 0.0

    def _name(self, device: int) -> str:
        return self.problem.topology.devices[device].id


Hop = tuple[str, str]


class Network:
    """Sends tensors along their routes in the order in which it is asked, each as early as the links allow.

    With ``contention: link`` a link direction (or a half-duplex link as a whole) carries one transfer at a time:
    for how long is said in `dlplacer.problem.routes`. Without contention nothing waits.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._contended = problem.options.contention == "link"
        self._free_s: dict[Hop, float] = {}
        # The same for every replay of a problem, and asked for anew by each of its transfers.
        self._lines: dict[tuple[int, tuple[str, str]], list[_Line]] = problem.derived.setdefault(Network, {})

    def send(self, tensor: str, source: str, pair: tuple[str, str], size: int, ready_s: float) -> Transfer:
        """The transfer of a tensor between a pair of devices, not before it is ready.

        Parameters
        ----------
        size
            Position of its bytes in `Problem.sizes_bytes`.
        """
        if (size, pair) not in self._lines:
            self._lines[size, pair] = list(self._lines_of(size, pair))
        parts = []
        for line in self._lines[size, pair]:
            parts.append(self._segment(line, ready_s))
            ready_s = parts[-1].end_s
        return Transfer(tensor, source, pair[1], self._problem.sizes_bytes[size], tuple(parts))

    def _lines_of(self, size: int, pair: tuple[str, str]) -> Iterator["_Line"]:
        topology, size_bytes = self._problem.topology, self._problem.sizes_bytes[size]
        for segment in segments(topology, self._problem.routes[size][pair]):
            hops = tuple(pairwise(segment))
            links = [topology.link_between[hop] for hop in hops]
            spans = link_spans(links, size_bytes, self._problem.options.delay, float)
            directions = [link.direction(hop) for hop, link in zip(hops, links, strict=True)]
            yield _Line(hops, tuple(zip(directions, spans, strict=True)), spans[-1][1])

    def _segment(self, line: "_Line", ready_s: float) -> TransferSegment:
        start_s = ready_s
        if self._contended:
            for direction, (begin_s, _) in line.spans:
                start_s = max(start_s, self._free_s.get(direction, 0.0) - begin_s)
            for direction, (_, until_s) in line.spans:
                self._free_s[direction] = start_s + until_s
        return TransferSegment(line.hops, start_s, start_s + line.length_s)


class _Line(NamedTuple):
    """A route segment for tensors of a size: its links, when each is held from its start, and its length."""

    hops: tuple[Hop, ...]
    spans: tuple[tuple[Hop, tuple[float, float]], ...]
    length_s: float


def replay_plan(plan: Plan, graph: OpGraph, topology: Topology, dispatch_s: float = 0.0) -> Plan:
    """The same placement and order under the costs of another graph and topology; without bound and gap.

    The graph has the plan's ops; the topology has as many devices, which stand for the plan's in order. `replay` says
    what `dispatch_s` is.

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
    # One step is replayed, so its plan is one of least makespan, whatever the objective was.
    options = replace(plan.options, objective="makespan")
    problem = build_problem(graph, topology, options)
    position = plan.topology.device_index
    device = [position[plan.placement[op.id]] for op in graph.ops]
    order = [graph.index[scheduled.op] for scheduled in in_order(plan)]
    ops, transfers = replay(problem, device, order, dispatch_s)
    makespan_s = max(entry.end_s for entry in ops)
    return replace(
        plan,
        graph=graph,
        topology=topology,
        options=options,
        status="feasible",
        makespan_s=makespan_s,
        period_s=None,
        lower_bound_s=0.0,
        gap=1.0 if makespan_s else 0.0,
        rounding_s=0.0,
        ops=ops,
        transfers=transfers,
        memory=memory_use(problem, ops, transfers),
    )


def replay_under_issue(plan: Plan, dispatch_s: float) -> Plan:
    """The same placement and order where one process issues an op for any device in so many seconds; without bound."""
    return replay_plan(plan, plan.graph, with_one_process(plan.topology, dispatch_s))


def in_order(plan: Plan) -> list[ScheduledOp]:
    """The plan's ops, each after its producers, those of a device in the plan's order.

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
