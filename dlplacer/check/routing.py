"""Eq. 8, 9 and 11: the transfers that a plan needs, their routes and their durations."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator

from dlplacer.check.violation import Violation
from dlplacer.core.plan import Plan, Transfer, TransferSegment


def transfers_needed(plan: Plan) -> Iterator[Violation]:
    """Eq. 8: a tensor is sent to every device that reads it but does not produce it, once per device or per edge."""
    placement, tensors = plan.placement, {edge.tensor: edge for edge in plan.graph.edges}
    needed = Counter(
        (edge.tensor, placement[edge.target])
        for edge in plan.graph.edges
        if placement[edge.source] != placement[edge.target]
    )
    if plan.options.transfers == "device":
        needed = Counter(needed.keys())
    found = Counter((transfer.tensor, transfer.target) for transfer in plan.transfers)
    for place in needed | found if needed != found else ():
        tensor, target = place
        if needed[place] != found[place]:
            yield Violation(
                "eq. 8 transfers",
                f"tensor {tensor!r} goes to {target!r} {found[place]} times; with 'transfers: "
                f"{plan.options.transfers}' it must go {needed[place]} times",
            )
    for transfer in plan.transfers:
        sent = tensors.get(transfer.tensor)
        if sent is not None and (transfer.source, transfer.bytes) != (sent.source, sent.bytes):
            yield Violation(
                "eq. 8 transfers",
                f"the transfer of {transfer.tensor!r} says {transfer.bytes} bytes of {transfer.source!r}; the graph "
                f"says {sent.bytes} bytes of {sent.source!r}",
            )


def contiguous_routes(plan: Plan) -> Iterator[Violation]:
    """Eq. 8, 9: a route leads over links from the producer's device to the target, and visits no node twice.

    Inside a segment it passes only routers; a segment ends at each device that relays.
    """
    for transfer in plan.transfers:
        start = plan.placement.get(transfer.source)
        nodes = [start, *(hop[1] for segment in transfer.segments for hop in segment.route)]
        here = start
        for segment in transfer.segments:
            for hop in segment.route:
                if hop[0] != here:
                    yield _route_violation(transfer, f"it is at {here!r}, but the next hop leads {_arrow(hop)}")
                if hop not in plan.topology.link_between:
                    yield _route_violation(transfer, f"the topology has no link {_arrow(hop)}")
                here = hop[1]
            between = [hop[1] for hop in segment.route[:-1]]
            relays = [node for node in between if node in plan.topology.device_index]
            if relays:
                yield _route_violation(transfer, f"device {relays[0]!r} relays inside a segment; end the segment there")
            if here not in plan.topology.device_index:
                yield _route_violation(transfer, f"a segment ends at {here!r}, which is not a device")
        if here != transfer.target:
            yield _route_violation(transfer, f"the route ends at {here!r}")
        if len(set(nodes)) < len(nodes):
            node, visits = Counter(nodes).most_common(1)[0]
            yield _route_violation(transfer, f"the route visits {node!r} {visits} times; it may visit a node once")


def transfer_durations(plan: Plan) -> Iterator[Violation]:
    """Eq. 11: a segment lasts Σ over its links of bytes/B(l) + L(l), or with cut-through bytes/min B(l) + Σ L(l).

    A segment starts no earlier than the previous one ends.
    """
    slack = plan.tolerance_s
    for transfer in plan.transfers:
        ready_s = transfer.segments[0].start_s
        for segment in transfer.segments:
            if segment.start_s < ready_s - slack:
                yield Violation(
                    "eq. 11 delay",
                    f"tensor {transfer.tensor!r} leaves {segment.route[0][0]!r} at {segment.start_s:.9g} s, before it "
                    f"is there at {ready_s:.9g} s",
                )
            ready_s = segment.end_s
            delay_s = segment_delay_s(plan, transfer.bytes, segment)
            if delay_s is not None and abs(segment.end_s - segment.start_s - delay_s) > slack:
                yield Violation(
                    "eq. 11 delay",
                    f"tensor {transfer.tensor!r} takes {segment.end_s - segment.start_s:.9g} s from "
                    f"{segment.route[0][0]!r} to {segment.route[-1][1]!r} in the plan; {transfer.bytes} bytes need "
                    f"{delay_s:.9g} s",
                )


def one_transfer_at_a_time(plan: Plan) -> Iterator[Violation]:
    """Under ``contention: link`` a link direction, or a whole half-duplex link, carries one transfer at a time."""
    if plan.options.contention != "link":
        return
    slack = plan.tolerance_s
    uses: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    for transfer in plan.transfers:
        for segment in transfer.segments:
            for hop, start_s, end_s in occupied(plan, transfer.bytes, segment):
                link = plan.topology.link_between.get(hop)
                if link is not None:
                    direction = hop if link.duplex == "full" else (min(hop), max(hop))
                    uses[direction].append((start_s, end_s, transfer.tensor))
    for direction, entries in uses.items():
        latest_s, since_s, latest = -math.inf, -math.inf, ""
        for start_s, end_s, tensor in sorted(entries):
            # Because of rounding, a transfer of zero time may seem to start inside one that starts at the same moment.
            if start_s < latest_s - slack and end_s > since_s + slack:
                yield Violation(
                    "link contention",
                    f"link {_arrow(direction)} carries {latest!r} until {latest_s:.9g} s, but {tensor!r} starts on it "
                    f"at {start_s:.9g} s",
                )
            latest_s, since_s, latest = max((latest_s, since_s, latest), (end_s, start_s, tensor))


def occupied(plan: Plan, size_bytes: int, segment: TransferSegment) -> Iterator[tuple[tuple[str, str], float, float]]:
    """The hops of a segment, each with the start and end in seconds of its use."""
    if plan.options.delay == "cut-through":
        for hop in segment.route:
            yield hop, segment.start_s, segment.end_s
        return
    here_s = segment.start_s
    for hop in segment.route:
        link = plan.topology.link_between.get(hop)
        if link is None:
            return
        there_s = here_s + size_bytes / link.total_bytes_per_s + link.latency_s
        yield hop, here_s, there_s
        here_s = there_s


def segment_delay_s(plan: Plan, size_bytes: int, segment: TransferSegment) -> float | None:
    """The delay of a segment in seconds, by eq. 11 or cut-through; None if its route names an unknown link."""
    links = [plan.topology.link_between.get(hop) for hop in segment.route]
    present = [link for link in links if link is not None]
    if len(present) != len(links):
        return None
    latency_s = sum(link.latency_s for link in present)
    if plan.options.delay == "cut-through":
        return size_bytes / min(link.total_bytes_per_s for link in present) + latency_s
    return sum(size_bytes / link.total_bytes_per_s for link in present) + latency_s


def _arrow(hop: tuple[str, str]) -> str:
    return f"{hop[0]!r} → {hop[1]!r}"


def _route_violation(transfer: Transfer, message: str) -> Violation:
    return Violation("eq. 8, 9 route", f"tensor {transfer.tensor!r} to {transfer.target!r}: {message}")
