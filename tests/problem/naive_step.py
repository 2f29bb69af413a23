"""A step, simulated moment by moment in whole seconds from the words of the documentation: devices, hosts and links.

It shares nothing with the package but the data of a problem and its routes.
"""

from collections.abc import Sequence
from itertools import pairwise

from problem.naive_issues import LONG_S, naive_issues

from dlplacer.problem.problem import Problem

Sent = tuple[str, str, str]
"""A tensor, the device that it goes to, and its reader where each edge has a transfer of its own."""


def naive_step(
    problem: Problem, device: Sequence[int], order: Sequence[int]
) -> tuple[dict[str, int], dict[Sent, list[tuple[int, int]]]]:
    """Op → its end; what is sent → (start, end) of every route segment."""
    step = _Step(problem, device, order)
    for step.now in range(LONG_S):
        while step.some_op_starts() or step.some_op_has_ended() or step.some_op_gets_its_turn():
            pass
        if len(step.done) == len(step.ops):
            break
    return step.end, step.sent


class _Step:
    """What is known at a moment."""

    def __init__(self, problem: Problem, device: Sequence[int], order: Sequence[int]) -> None:
        self.problem, self.graph, self.now = problem, problem.graph, 0
        self.machine = {node.id: node for node in problem.topology.devices}
        names = [op.id for op in self.graph.ops]
        self.at = {name: problem.topology.devices[device[i]].id for i, name in enumerate(names)}
        self.rank = {names[op]: place for place, op in enumerate(order)}
        later = ("backward", "optimizer") if problem.options.step == "autograd" else ()
        self.behind = {op.id for op in self.graph.ops if op.phase in later}
        self.ops = sorted(names, key=lambda name: (name in self.behind, self.rank[name]))
        self.to_run = {here: [op for op in self.ops if self.at[op] == here] for here in self.machine}
        self.end: dict[str, int] = {}
        self.done: list[str] = []
        self.sent: dict[Sent, list[tuple[int, int]]] = {}
        self.link_free: dict[object, int] = {}
        self.asking: list[tuple[int, int, str]] = []
        self.last_start: dict[object, tuple[str, int]] = {}
        self.issued = self._issued()

    # What takes how long.

    def time_s(self, op: str) -> int:
        return int(self.graph.op(op).time_on(self.machine[self.at[op]].type) or 0)

    def process(self, here: str) -> object:
        return self.machine[here].process or ("own", here)

    def shares_its_process(self, here: str) -> bool:
        mine = (self.process(here), False)
        return mine == (self.process(here), self.machine[here].asynchronous) and any(
            (self.process(other), self.machine[other].asynchronous) == mine for other in self.machine if other != here
        )

    def _issued(self) -> dict[str, int]:
        """When what runs ahead has been issued; of what is behind the barrier, from there."""
        ahead = [op for op in self.ops if self.machine[self.at[op]].asynchronous and self.time_s(op)]
        return naive_issues(
            (op, (self.process(self.at[op]), op in self.behind), int(self.machine[self.at[op]].dispatch_s or 0))
            for op in ahead
        )

    # What happens.

    def some_op_starts(self) -> bool:
        """A device that is free takes its next op once all is there; one that takes turns asks for it."""
        for here, queue in self.to_run.items():
            if not queue or not self.may_start(queue[0]) or any(self.at[op] == here for *_, op in self.asking):
                continue
            if self.shares_its_process(here) and self.time_s(queue[0]):
                self.asking.append((self.now, self.rank[queue[0]], queue[0]))
            else:
                self._start(queue[0])
            return True
        return False

    def may_start(self, op: str) -> bool:
        here = self.at[op]
        ran = [other for other in self.end if self.at[other] == here]
        free = max((self.end[other] for other in ran), default=0)
        passed = self.barrier() if op in self.behind else 0
        return (
            self.now >= free
            and passed is not None
            and self.now >= passed + self.issued.get(op, 0)
            and all(self.is_there(edge.source, edge.tensor, op) for edge in self.graph.edges_into[op])
        )

    def barrier(self) -> int | None:
        """When all forward ops had ended; None before that."""
        forward = [op for op in self.ops if op not in self.behind]
        return max((self.end[op] for op in forward), default=0) if set(forward) <= set(self.done) else None

    def is_there(self, source: str, tensor: str, reader: str) -> bool:
        if source not in self.done:
            return False
        if self.at[source] == self.at[reader]:
            return True
        own = reader if self.problem.options.transfers == "edge" else ""
        return self.sent[tensor, self.at[reader], own][-1][1] <= self.now

    def _start(self, op: str) -> None:
        self.to_run[self.at[op]].remove(op)
        self.end[op] = self.now + self.time_s(op)

    def some_op_has_ended(self) -> bool:
        """Of the ops that have ended the first in the order sends what others read of it."""
        ended = [op for op in self.end if self.end[op] <= self.now and op not in self.done]
        if not ended:
            return False
        op = min(ended, key=lambda each: (self.end[each], self.rank[each]))
        self.done.append(op)
        here = self.at[op]
        for edge in sorted(self.graph.edges_from[op], key=lambda edge: self.rank[edge.target]):
            pair = edge.tensor, self.at[edge.target]
            what = (*pair, edge.target if self.problem.options.transfers == "edge" else "")
            if pair[1] != here and what not in self.sent:
                self.sent[what] = self._travel(edge.bytes, here, pair[1], self.end[op])
        return True

    def some_op_gets_its_turn(self) -> bool:
        """Of those that ask a process the first may start, if it is long enough after another device's start."""
        for entry in sorted(self.asking):
            op, process = entry[2], self.process(self.at[entry[2]])
            if any(self.process(self.at[each[2]]) == process for each in self.asking if each < entry):
                continue
            device, started = self.last_start.get(process, (self.at[op], 0))
            if device == self.at[op] or self.now >= started + int(self.machine[device].dispatch_s or 0):
                self.last_start[process] = self.at[op], self.now
                self.asking.remove(entry)
                self._start(op)
                return True
        return False

    # Links.

    def _travel(self, size_bytes: int, source: str, target: str, ready: int) -> list[tuple[int, int]]:
        """Over every segment of its route as soon as all of its links will be free of what was asked for before."""
        number = self.problem.sizes_bytes.index(size_bytes)
        route = self.problem.routes[number][source, target]
        stops = [place for place, node in enumerate(route) if node in self.machine]
        times = []
        for begin, end in pairwise(stops):
            uses = self._uses(size_bytes, list(pairwise(route[begin : end + 1])))
            while self.problem.options.contention == "link" and any(
                ready + first < self.link_free.get(link, 0) for link, first, _ in uses
            ):
                ready += 1
            for link, _, last in uses:
                self.link_free[link] = ready + last
            times.append((ready, ready + uses[-1][2]))
            ready = times[-1][1]
        return times

    def _uses(self, size_bytes: int, hops: list[tuple[str, str]]) -> list[tuple[object, int, int]]:
        """Link direction, when it begins to be held and when it ceases, from the segment's start."""
        links = [self.problem.topology.link_between[hop] for hop in hops]
        names = [frozenset(hop) if link.duplex == "half" else hop for hop, link in zip(hops, links, strict=True)]
        each_s = [size_bytes / link.total_bytes_per_s for link in links]
        if self.problem.options.delay == "cut-through":
            whole = round(max(each_s) + sum(link.latency_s for link in links))
            return [(name, 0, whole) for name in names]
        ends = [round(sum(each_s[: i + 1]) + sum(link.latency_s for link in links[: i + 1])) for i in range(len(links))]
        return list(zip(names, [0, *ends[:-1]], ends, strict=True))
