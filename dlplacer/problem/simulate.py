"""Turn a placement with an order, or a schedule in ticks, into times in seconds: the earliest that the order allows.

`realise` gives a solver's schedule its exact times; `replay_plan` predicts an old plan under new costs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Topology
from dlplacer.problem.dispatch import dispatch_of, issue_times, with_one_process
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.route_table import ScheduledTransfer, transfer_requests
from dlplacer.problem.routes import Hop, link_holds, segments


def replay(
    problem: Problem, device: Sequence[int], order: Iterable[int]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers with their earliest times (eq. 10–12), under the problem's options.

    Time runs forward: when an op ends, its tensors leave at once, in the order of their first readers; contended links
    serve tensors first come, first served. Ops wait for the processes that issue them, according to the topology
    (`dlplacer.problem.dispatch`). `order` decides the order of issues and the order on every device; under ``step:
    autograd`` forward ops come first.

    Raises MismatchError if the order cannot run: an op waits for a later one on its device, or devices wait in a
    circle.
    """
    clock = _Clock(problem, device, list(order))
    while clock.running or clock.requests:
        clock.go_on()
    if len(clock.done) < problem.op_count:
        stuck = next(queue[-1] for queue in clock.queues if queue)
        name = problem.graph.ops[stuck].id
        raise MismatchError(f"the order cannot run: op {name!r} comes before an op that it depends on")
    return tuple(clock.done), tuple(clock.transfers)


class _Clock:
    """The state of a replay: running, waiting and finished ops."""

    def __init__(self, problem: Problem, device: Sequence[int], order: Sequence[int]) -> None:
        self.problem, self.device, self.dispatch = problem, device, dispatch_of(problem.topology)
        self.rank = {op: position for position, op in enumerate(order)}
        self.behind_barrier = problem.behind_barrier
        self.before_barrier = problem.op_count - len(self.behind_barrier)
        self.queues: list[list[int]] = [[] for _ in range(problem.device_count)]
        for op in sorted(order, key=lambda op: (op in self.behind_barrier, self.rank[op]), reverse=True):
            self.queues[device[op]].append(op)
        self.issued_s = issue_times(problem, device, order, self.dispatch, self.behind_barrier)
        self.waits = [len(arcs) for arcs in problem.arcs_into]
        self.ready_s = [0.0] * problem.op_count
        self.free_s = [0.0] * problem.device_count
        self.barrier_s = 0.0
        self.link_free_s: dict[tuple[str, str], float] = {}
        self.running: list[tuple[float, int, int]] = []
        # Ops that wait for their process's interpreter, by the time of their request: at most one per device.
        self.requests: list[tuple[float, int, int]] = []
        self.shares_interpreter = [self.dispatch.shares_interpreter(here) for here in range(problem.device_count)]
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
        """Start the op that requested first, `dispatch_s` after the last start on another device of its process."""
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
                parts = tuple(self._send(arc.size, (self._name(here), self._name(there)), now_s))
                size_bytes = self.problem.sizes_bytes[arc.size]
                self.transfers.append(Transfer(edge.tensor, edge.source, self._name(there), size_bytes, parts))
                arrival_s = parts[-1].end_s
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

    def _send(self, size: int, pair: tuple[str, str], ready_s: float) -> Iterator[TransferSegment]:
        """Send a tensor between two devices by the route of least delay, as early as the links allow.

        With ``contention: link`` a link direction (or a half-duplex link as a whole) carries one transfer at a time,
        for the time given by `link_holds`. Without contention nothing waits.
        """
        for hops, held in _holds(self.problem, size, pair):
            start_s = ready_s
            if self.problem.options.contention == "link":
                for direction, begin_s, _ in held:
                    start_s = max(start_s, self.link_free_s.get(direction, 0.0) - begin_s)
                for direction, _, until_s in held:
                    self.link_free_s[direction] = start_s + until_s
            ready_s = start_s + held[-1][2]
            yield TransferSegment(hops, start_s, ready_s)

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


def _holds(problem: Problem, size: int, pair: Hop) -> list[tuple[tuple[Hop, ...], list[tuple[Hop, float, float]]]]:
    """The hops and link holds of each segment of the route of least delay, computed once for all replays."""
    key = "holds", size, pair
    if key not in problem.derived:
        size_bytes, delay = problem.sizes_bytes[size], problem.options.delay
        parts = (tuple(pairwise(part)) for part in segments(problem.topology, problem.routes[size][pair]))
        problem.derived[key] = [(hops, link_holds(problem.topology, hops, size_bytes, delay, float)) for hops in parts]
    return problem.derived[key]  # type: ignore[no-any-return]


def replay_plan(plan: Plan, graph: OpGraph, topology: Topology, dispatch_s: float = 0.0) -> Plan:
    """The plan with the same placement and order under the costs of another graph and topology; its lower bound is 0.

    `graph` has the plan's ops; `topology` has as many devices, which replace the plan's devices in order. If
    `dispatch_s` is positive, one process issues all ops, each in that time, whatever the topology says.

    Raises MismatchError if the device counts or the ops differ.
    """
    if len(topology.devices) != len(plan.topology.devices):
        raise MismatchError(
            f"the plan has {len(plan.topology.devices)} devices, the machine {len(topology.devices)}; they must match"
        )
    missing = [scheduled.op for scheduled in plan.ops if scheduled.op not in graph.index]
    if missing or len(graph.ops) != len(plan.ops):
        raise MismatchError(f"the plan's ops are not those of the graph; the first that differs is {missing[:1]}")
    if topology.device_index != plan.topology.device_index:
        # Pins name the plan's devices. The placement obeys them, whatever the machine's names.
        graph = replace(graph, constraints=Constraints())
    # One step is replayed, so its objective is the makespan, whatever the plan's was.
    options = replace(plan.options, objective="makespan")
    problem = build_problem(graph, with_one_process(topology, dispatch_s) if dispatch_s else topology, options)
    position = plan.topology.device_index
    device = [position[plan.placement[op.id]] for op in graph.ops]
    order = [graph.index[scheduled.op] for scheduled in in_order(plan)]
    ops, transfers = replay(problem, device, order)
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


def in_order(plan: Plan) -> list[ScheduledOp]:
    """The plan's ops, every op after its producers, and the ops of each device in the plan's order.

    Start times alone cannot order zero-time ops, so dependencies and device order decide.
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


_MOST_PASSES = 100
"""Passes over all activities: one suffices without ties of zero-time ops, and each further pass settles one more
tie."""


class ResourceUse(NamedTuple):
    """A use of a device or link direction: its ticks, offset from the activity's start, and length."""

    resource: int
    from_tick: int
    to_tick: int
    offset: float
    length: float


class Activity(NamedTuple):
    """An op, a route segment of a transfer, or a moment that other activities wait for.

    Attributes
    ----------
    key
        Start tick, end tick, and numbers that break ties: an activity sorts after every activity that it waits for.
    after
        (position of another activity, lag): this activity starts at least `lag` after the start of the other.
    takes, frees
        The device where the activity takes memory, or -1; and the devices where its end may free memory.
    release
        Earliest start.
    """

    key: tuple[int, ...]
    length: float
    after: tuple[tuple[int, float], ...]
    holds: tuple[ResourceUse, ...] = ()
    takes: int = -1
    frees: tuple[int, ...] = ()
    release: float = 0


def earliest(steps: Sequence[Activity], waits_for_memory: bool) -> list[float]:
    """[step] → its earliest start if every resource keeps the order of the ticks.

    With `waits_for_memory`, a step also waits for all steps that, in ticks, end on its device before it starts. Then
    all tensors live at its start were also live at its start tick, so memory that sufficed in ticks still suffices.
    """
    after = [list(step.after) for step in steps]
    keys = [step.key for step in steps]
    uses: dict[int, list[tuple[int, int, tuple[int, ...], int, ResourceUse]]] = {}
    for number, step in enumerate(steps):
        for hold in step.holds:
            # Rounding may put a zero-time use one tick after the end of its step, where a step that waits for this step
            # has begun. The uses would then follow each other in a circle.
            ticks = min(hold.from_tick, step.key[1]), min(hold.to_tick, step.key[1])
            uses.setdefault(hold.resource, []).append((*ticks, step.key, number, hold))
    for resource in uses.values():
        # Numbers of steps are distinct unless a step uses a resource twice; then list order decides.
        resource.sort(key=itemgetter(0, 1, 2, 3))
        for (_, _, _, first, before), (_, _, _, second, behind) in pairwise(resource):
            after[second].append((first, before.offset + before.length - behind.offset))
    order = sorted(range(len(steps)), key=keys.__getitem__)
    start = [step.release + 0 * step.length for step in steps]
    place = [0] * len(steps)
    for position, number in enumerate(order):
        place[number] = position
    in_turn = all(place[other] < here for here, entries in zip(place, after, strict=True) for other, _ in entries)
    for _ in range(1 if in_turn else _MOST_PASSES):
        changed = False
        ending_ops: dict[int, list[tuple[int, float]]] = {}
        ended: dict[int, float] = {}
        for number in order:
            step, begin = steps[number], start[number]
            for other, lag in after[number]:
                ready = start[other] + lag
                if ready > begin:
                    begin = ready
            if waits_for_memory and step.takes >= 0:
                queue = ending_ops.get(step.takes, [])
                while queue and queue[0][0] <= step.key[0]:
                    ended[step.takes] = max(ended.get(step.takes, 0), heappop(queue)[1])
                begin = max(begin, ended.get(step.takes, 0))
            changed = changed or begin > start[number]
            start[number] = begin
            for device in step.frees if waits_for_memory else ():
                heappush(ending_ops.setdefault(device, []), (step.key[1], begin + step.length))
        if not changed:
            break
    return start


def realise(
    problem: Problem, device: Sequence[int], start: Sequence[int], transfers: Sequence[ScheduledTransfer]
) -> tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]:
    """Ops and transfers with times in seconds; every device, link and host process keeps the order of the ticks.

    Memory that suffices in ticks also suffices here, however long ops wait for their processes: see `earliest`.
    `transfers` must send each request to every device that reads the tensor, except the producer's device.
    """
    activities = _Activities(problem, device, start, transfers)
    steps = activities.steps()
    begun = earliest(steps, problem.options.memory == "live")
    order = sorted(range(problem.op_count), key=lambda op: steps[op].key)
    names = [problem.topology.devices[here].id for here in device]
    ops = tuple(
        ScheduledOp(problem.graph.ops[op].id, names[op], begun[op], begun[op] + steps[op].length) for op in order
    )
    return ops, tuple(activities.transfers(begun, steps))


class _Activities:
    """The activities of a schedule: ops, then the barrier, then the route segments of the transfers."""

    def __init__(
        self, problem: Problem, device: Sequence[int], start: Sequence[int], transfers: Sequence[ScheduledTransfer]
    ) -> None:
        self.problem, self.device, self.start, self.sent = problem, device, start, transfers
        self.requests = transfer_requests(problem)
        self.rank = {op: position for position, op in enumerate(problem.topological)}
        kinds = [problem.topology.devices[here].type for here in device]
        self.length_s = [op.time_on(kind) or 0.0 for op, kind in zip(problem.graph.ops, kinds, strict=True)]
        self.end = [begin + (problem.duration[op][device[op]] or 0) for op, begin in enumerate(start)]
        self.dispatch = dispatch_of(problem.topology)
        by_start = sorted(range(len(start)), key=lambda op: (start[op], self.end[op], self.rank[op]))
        self.issued_s = issue_times(problem, device, by_start, self.dispatch, problem.behind_barrier)
        self.called_after = self._calls(by_start)
        self.first = list(accumulate((len(send.route) for send in transfers), initial=problem.op_count + 1))
        self.inputs: list[list[tuple[int, float]]] = [[] for _ in range(problem.op_count)]

    def steps(self) -> list[Activity]:
        """All steps; those of ops come first, at the ops' positions."""
        segments = [step for number, send in enumerate(self.sent) for step in self._segments(number, send)]
        ops = [self._op(op) for op in range(self.problem.op_count)]
        return [*ops, self._barrier(), *segments]

    def transfers(self, begun: Sequence[float], steps: Sequence[Activity]) -> Iterator[Transfer]:
        """The transfers, in the order in which they were scheduled."""
        for first, send in zip(self.first, self.sent, strict=False):
            request = self.requests[send.request]
            parts = (
                TransferSegment(segment.hops, begun[place], begun[place] + steps[place].length)
                for place, segment in enumerate(send.route, first)
            )
            yield Transfer(
                request.tensor,
                self.problem.graph.ops[request.source].id,
                self.problem.topology.devices[send.target].id,
                self.problem.sizes_bytes[request.size],
                tuple(parts),
            )

    def _op(self, op: int) -> Activity:
        here, begin, length_s = self.device[op], self.start[op], self.length_s[op]
        arcs = self.problem.arcs_into[op]
        after = [(arc.source, self.length_s[arc.source]) for arc in arcs if self.device[arc.source] == here]
        behind = op in self.problem.behind_barrier
        if behind:
            after.append((self.problem.op_count, self.issued_s[op]))
        if op in self.called_after:
            after.append(self.called_after[op])
        return Activity(
            (begin, self.end[op], self.rank[op], -1),
            length_s,
            (*after, *self.inputs[op]),
            (ResourceUse(-1 - here, begin, self.end[op], 0.0, length_s),),
            here,
            (here,),
            0.0 if behind else self.issued_s[op],
        )

    def _calls(self, by_start: Sequence[int]) -> dict[int, tuple[int, float]]:
        """Op of a core that shares its interpreter → the op whose start it must follow, and the lag."""
        shares = [self.dispatch.shares_interpreter(here) for here in range(self.problem.device_count)]
        latest: dict[int, int] = {}
        found: dict[int, tuple[int, float]] = {}
        for op in by_start:
            here = self.device[op]
            if self.length_s[op] and shares[here]:
                before = latest.get(self.dispatch.process[here])
                if before is not None and self.device[before] != here:
                    found[op] = before, self.dispatch.seconds[self.device[before]]
                latest[self.dispatch.process[here]] = op
        return found

    def _barrier(self) -> Activity:
        """The activity that ends with all ops before the barrier, and sorts after these ops if ticks are equal."""
        before = [op for op in range(self.problem.op_count) if op not in self.problem.behind_barrier]
        last = max((self.end[op] for op in before), default=0)
        rank = max((self.rank[op] for op in before), default=-1)
        return Activity((last, last, rank, 0), 0.0, tuple((op, self.length_s[op]) for op in before))

    def _segments(self, number: int, send: ScheduledTransfer) -> Iterator[Activity]:
        request = self.requests[send.request]
        here = self.device[request.source]
        before = request.source, self.length_s[request.source]
        for part, (begin, segment) in enumerate(zip(send.start, send.route, strict=True)):
            size_bytes, delay = self.problem.sizes_bytes[request.size], self.problem.options.delay
            held = link_holds(self.problem.topology, segment.hops, size_bytes, delay, float)
            length_s = held[-1][2]
            # Without contention a segment holds no links.
            holds = tuple(
                ResourceUse(direction, begin + offset, begin + offset + ticks, from_s, to_s - from_s)
                for (direction, offset, ticks), (_, from_s, to_s) in zip(segment.holds, held, strict=False)
            )
            key = begin, begin + segment.ticks, self.rank[request.source], part
            yield Activity(key, length_s, (before,), holds, segment.target, (here, segment.target))
            before, here = (self.first[number] + part, length_s), segment.target
        for reader in request.readers:
            if self.device[reader] == send.target:
                self.inputs[reader].append(before)
