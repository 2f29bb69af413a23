"""``routing: shortest``: no route is slower than the fastest one for the tensor's bytes."""

import math
from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from dlplacer.check.routing import segment_delay_s
from dlplacer.check.violation import Violation
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, Transfer
from dlplacer.core.topology import Topology


def shortest_routes(plan: Plan) -> Iterator[Violation]:
    """Under ``routing: shortest`` every transfer takes a route of least delay (eq. 11 or cut-through)."""
    if plan.options.routing != "shortest":
        return
    slack = plan.tolerance_s
    least: dict[tuple[str, str, int], float] = {}
    for transfer in plan.transfers:
        delay_s = _delay_s(plan, transfer)
        start = plan.placement.get(transfer.source)
        if delay_s is None or start is None:
            continue
        key = start, transfer.target, transfer.bytes
        if key not in least:
            least[key] = _least_delay_s(plan.topology, plan.options, *key)
        if delay_s > least[key] + slack:
            yield Violation(
                "shortest route",
                f"tensor {transfer.tensor!r} to {transfer.target!r} takes a route of {delay_s:.9g} s; {transfer.bytes} "
                f"bytes need no more than {least[key]:.9g} s",
            )


def _delay_s(plan: Plan, transfer: Transfer) -> float | None:
    delays = [segment_delay_s(plan, transfer.bytes, segment) for segment in transfer.segments]
    known = [delay_s for delay_s in delays if delay_s is not None]
    return sum(known) if len(known) == len(delays) else None


def _least_delay_s(topology: Topology, options: Options, source: str, target: str, size_bytes: int) -> float:
    """The least delay between two devices in seconds; infinite if there is no route.

    Dijkstra's algorithm over pairs of a node and the rate of the narrowest link since the last device. Cut-through
    counts the bytes at the end of a segment, store-and-forward on every link.
    """
    neighbours = defaultdict(list)
    for (here, there), link in topology.link_between.items():
        neighbours[here].append((there, link))
    waiting = [(0.0, source, math.inf)]
    done = set()
    while waiting:
        spent_s, here, rate = heappop(waiting)
        if here == target:
            return spent_s
        # A node alone is not a state, because the narrowest link so far changes the cost of the rest of a segment:
        # a slower partial route over wider links may become the cheaper one.
        if (here, rate) in done:
            continue
        done.add((here, rate))
        for there, link in neighbours[here]:
            narrowest = min(rate, link.total_bytes_per_s)
            if options.delay == "store-and-forward" or there in topology.device_index:
                spent_there_s = spent_s + link.latency_s + size_bytes / narrowest
                narrowest = math.inf
            else:
                spent_there_s = spent_s + link.latency_s
            heappush(waiting, (spent_there_s, there, narrowest))
    return math.inf
