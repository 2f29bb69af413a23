"""Transfers on the links of a plan."""

from dataclasses import dataclass, replace

from dlplacer.core.plan import Plan, Transfer, TransferSegment
from dlplacer.problem.routes import link_spans


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link direction `hop` carries segment number `part` of a transfer from `start_s` to `end_s`."""

    hop: tuple[str, str]
    transfer: Transfer
    part: int
    start_s: float
    end_s: float


def link_uses(plan: Plan) -> dict[tuple[str, str], list[LinkUse]]:
    """Link direction → its uses by start; directions in the topology's order, only those that are used.

    Cut-through holds all links of a segment together; store-and-forward passes from one to the next (eq. 11).
    """
    uses: dict[tuple[str, str], list[LinkUse]] = {}
    for link in plan.topology.links:
        uses[link.source, link.target] = []
        uses[link.target, link.source] = []
    for transfer in plan.transfers:
        for part, segment in enumerate(transfer.segments):
            links = [plan.topology.link_between[hop] for hop in segment.route]
            spans = link_spans(links, transfer.bytes, plan.options.delay, float)
            # A plan from a file may round its times: no link is held longer than the segment, the last as long as it.
            for hop, (begin_s, until_s) in zip(segment.route, spans, strict=True):
                here_s = min(segment.start_s + begin_s, segment.end_s)
                there_s = segment.end_s if until_s == spans[-1][1] else min(segment.start_s + until_s, segment.end_s)
                uses[hop].append(LinkUse(hop, transfer, part, here_s, there_s))
    return {hop: sorted(found, key=lambda use: use.start_s) for hop, found in uses.items() if found}


def waited_for(predicted: Plan, measured: Plan) -> tuple[Transfer, ...]:
    """The transfers of a plan that a device waited for in a step that ran, each as long as it was waited for.

    That is until the reader begins, from the moment at which the producer has ended and the reader's device is free. Of
    the tensors that an op reads from other devices, it waited for the one whose producer ended last. What arrives while
    the device works costs no time, and when it does is not recorded.
    """
    sent = {(transfer.tensor, transfer.target): transfer for transfer in predicted.transfers}
    found = []
    for device, order in measured.order.items():
        free_s = 0.0
        for op in order:
            reader = measured.scheduled[op]
            read = [sent[key] for edge in predicted.graph.edges_into[op] if (key := (edge.tensor, device)) in sent]
            if read and reader.start_s > free_s:
                last = max(read, key=lambda transfer: measured.scheduled[transfer.source].end_s)
                # The clocks of two processes agree to microseconds only, so a reader may seem to start too early.
                begin_s = min(max(measured.scheduled[last.source].end_s, free_s), reader.start_s)
                parts = tuple(TransferSegment(part.route, begin_s, reader.start_s) for part in last.segments)
                found.append(replace(last, segments=parts))
            free_s = reader.end_s
    return tuple(sorted(found, key=lambda transfer: transfer.start_s))
