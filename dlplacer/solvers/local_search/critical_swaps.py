"""Descent over the orders of ops on devices and of transfers on links, placement and routes kept.

A schedule with its transfers is a disjunctive graph (Roy and Sussmann 1964): its nodes are ops and route segments, its
arcs say what waits for what, and every device and link direction has an order of those that occupy it. The makespan is
the length of a longest path, and it can only fall if two neighbours on that path change places in the order of a device
or link (van Laarhoven, Aarts and Lenstra 1992). List rules send a tensor when its reader's turn comes; so a tensor that
is long ready may leave behind one that is read earlier, although both would be there in time the other way round.
"""

from collections.abc import Iterator
from itertools import pairwise

from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence
from dlplacer.solvers.instance.time_limit import ask_time, now, within

Arcs = list[list[tuple[int, int]]]
"""[node] → (node, ticks): the second starts no earlier than so many ticks after the first has started."""

_FARTHEST = 4
"""Places by which a node moves ahead at once; farther moves are made of these."""

_MOST_PASSES = 100
"""Passes over nodes that wait for one another until a move is given up: those that settle take a few."""


def swap_critical(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer the best schedule with other orders, until no move on a longest path shortens it or the time is up.

    Nothing where links are not contended.
    """
    if incumbent.best is not None:
        swap_critical_of(instance, incumbent.best, incumbent, seconds)


def swap_critical_of(instance: Instance, schedule: Schedule, incumbent: Incumbent, seconds: float) -> None:
    """The same from a schedule that need not be the best one: that of another placement may lead further."""
    seconds = min(seconds, incumbent.budget.left_s)
    if instance.traffic is None or incumbent.closed or seconds <= 0:
        return
    stop_at = now() + seconds
    graph = DisjunctiveGraph(instance, schedule)
    if graph.descend(stop_at) < schedule.makespan:
        incumbent.offer(graph.schedule())


class DisjunctiveGraph:
    """The orders of a schedule, which may change, and its start times, which follow.

    Attributes
    ----------
    orders
        [device, then link direction] → the nodes that occupy it, in order.
    start
        [node] → start tick: the ops, then the route segments of all transfers.
    makespan
        Of the orders as they are.
    """

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance, self.device = instance, schedule.device
        self.transfers = schedule.transfers
        self._arcs: Arcs = [[] for _ in range(instance.op_count)]
        self._holds: list[dict[int, tuple[int, int]]] = []
        self.orders: list[list[int]] = [[] for _ in range(instance.device_count)]
        for op in sequence(instance, schedule.device, schedule.start):
            self.orders[schedule.device[op]].append(op)
        self._add_ops()
        self._add_transfers()
        self._waits = [0] * len(self._arcs)
        for row in self._arcs:
            for target, _ in row:
                self._waits[target] += 1
        self.start = [*schedule.start, *(begin for transfer in schedule.transfers for begin in transfer.start)]
        self.makespan = schedule.makespan
        self._before: list[tuple[int, int]] = []
        # Passes as many as nodes find all longest paths (Bellman 1958).
        if not self._retime(most_passes=len(self._arcs)):
            raise ValueError("a schedule whose orders wait for one another")

    def descend(self, stop_at: float) -> int:
        """Make moves that shorten the schedule, the first that is found each time, while there are any; its makespan.

        Parameters
        ----------
        stop_at
            A moment of the clock (`now`).
        """
        within(lambda: now() > stop_at, self._descend)
        return self.makespan

    def schedule(self) -> Schedule:
        """The schedule of the orders as they are."""
        node, sent = self.instance.op_count, []
        for transfer in self.transfers:
            begins = tuple(self.start[node : node + len(transfer.route)])
            node += len(transfer.route)
            sent.append(ScheduledTransfer(transfer.request, transfer.target, transfer.route, begins))
        sent.sort(key=lambda one: one.start)
        ops = tuple(self.start[: self.instance.op_count])
        return Schedule(tuple(self.device), ops, self.makespan, tuple(sent))

    def _descend(self) -> None:
        moved = True
        while moved:
            moved = False
            for resource, place, ahead in list(self._moves()):
                ask_time()
                if self._try(resource, place, ahead):
                    moved = True
                    break

    def _add_ops(self) -> None:
        instance, device = self.instance, self.device
        for op in range(instance.op_count):
            here, ticks = device[op], instance.duration[op][device[op]]
            self._holds.append({here: (0, ticks)})
            readers = instance.successors[op]
            self._arcs[op] += [(target, ticks + delay[here][device[target]]) for target, delay in readers]

    def _add_transfers(self) -> None:
        traffic = self.instance.traffic
        if traffic is None:
            return
        first = self.instance.device_count
        self.orders += [[] for _ in range(traffic.routes.resource_count)]
        occupied: list[list[tuple[int, int, int]]] = [[] for _ in self.orders]
        for transfer in self.transfers:
            request = traffic.requests[transfer.request]
            before, ticks = request.source, self.instance.duration[request.source][self.device[request.source]]
            for segment, begin in zip(transfer.route, transfer.start, strict=True):
                node = len(self._arcs)
                self._arcs.append([])
                self._holds.append({first + link: (offset, held) for link, offset, held in segment.holds})
                for link, (offset, held) in self._holds[node].items():
                    occupied[link].append((begin + offset, begin + offset + held, node))
                self._arcs[before].append((node, ticks))
                before, ticks = node, segment.ticks
            readers = [reader for reader in request.readers if self.device[reader] == transfer.target]
            self._arcs[before] += [(reader, ticks) for reader in readers]
        for link in range(first, len(self.orders)):
            self.orders[link] = [node for *_, node in sorted(occupied[link])]

    def _retime(self, most_passes: int = _MOST_PASSES) -> bool:
        """Start times and makespan of the orders; False, and no change, if they wait for one another."""
        count = len(self._arcs)
        waits, follows = self._waits.copy(), self._follows()
        for row in follows:
            for target, _ in row:
                waits[target] += 1
        start = [0] * count
        before = [(-1, 0)] * count
        ready = [node for node in range(count) if not waits[node]]
        for node in ready:
            now = start[node]
            for which, row in enumerate((self._arcs[node], follows[node])):
                for target, ticks in row:
                    if now + ticks > start[target]:
                        start[target], before[target] = now + ticks, (node, which)
                    waits[target] -= 1
                    if not waits[target]:
                        ready.append(target)
        left = [node for node in range(count) if waits[node]]
        if left and not self._settle(left, follows, start, before, most_passes):
            return False
        self.start, self._before = start, before
        self._last = max(range(self.instance.op_count), key=self._end)
        self.makespan = self._end(self._last)
        return True

    def _follows(self) -> Arcs:
        """The arcs from each node to those that are next after it on what it occupies."""
        holds = self._holds
        follows: Arcs = [[] for _ in self._arcs]
        for resource, order in enumerate(self.orders):
            for one, other in pairwise(order):
                offset, held = holds[one][resource]
                follows[one].append((other, offset + held - holds[other][resource][0]))
        return follows

    def _settle(
        self, left: list[int], follows: Arcs, start: list[int], before: list[tuple[int, int]], most_passes: int
    ) -> bool:
        """Push nodes on circles of arcs, and those behind them, to their starts; whether they come to rest in time.

        Store-and-forward transfers hold one link after the other, so each of two may be ahead of the other on a link
        without waiting: a circle of arcs whose ticks are not above 0 in sum.
        """
        latest = max(self.makespan, *self.start)
        left.sort(key=self.start.__getitem__)
        for _ in range(most_passes):
            moved = False
            for node in left:
                now = start[node]
                for which, row in enumerate((self._arcs[node], follows[node])):
                    for target, ticks in row:
                        if now + ticks > start[target]:
                            start[target], before[target] = now + ticks, (node, which)
                            moved = True
                if now > latest:
                    return False
            if not moved:
                return True
        return False

    def _end(self, op: int) -> int:
        return self.start[op] + self.instance.duration[op][self.device[op]]

    def _moves(self) -> Iterator[tuple[int, int, int]]:
        """(resource, place, places ahead) of nodes on a longest path that wait only for those ahead of them."""
        places = {
            (resource, node): place for resource, order in enumerate(self.orders) for place, node in enumerate(order)
        }
        node = self._last
        while node >= 0:
            before, by_order = self._before[node]
            if by_order:
                for resource in self._holds[node].keys() & self._holds[before].keys():
                    place = places[resource, node]
                    if self.orders[resource][place - 1] == before:
                        yield from ((resource, place, ahead) for ahead in range(1, min(_FARTHEST, place) + 1))
            node = before

    def _try(self, resource: int, place: int, ahead: int) -> bool:
        """Move a node ahead, on all that it shares with those it overtakes; whether that shortens the schedule."""
        known = self.start, self._before, self._last, self.makespan
        node = self.orders[resource][place]
        overtaken = set(self.orders[resource][place - ahead : place])
        orders = {}
        for other in self._holds[node]:
            order = orders[other] = self.orders[other]
            where = [position for position, one in enumerate(order) if one in overtaken]
            here = order.index(node)
            if where and where[0] < here:
                self.orders[other] = [*order[: where[0]], node, *order[where[0] : here], *order[here + 1 :]]
        if self._retime() and self.makespan < known[3]:
            return True
        for other, order in orders.items():
            self.orders[other] = order
        self.start, self._before, self._last, self.makespan = known
        return False
