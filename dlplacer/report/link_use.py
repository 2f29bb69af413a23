"""When each transfer of a plan uses each link."""

from dataclasses import dataclass

from dlplacer.core.plan import Plan, Transfer
from dlplacer.problem.routes import link_holds


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The use of a link direction by segment number `part` of a transfer, from `start_s` to `end_s`."""

    transfer: Transfer
    part: int
    start_s: float
    end_s: float


def link_uses(plan: Plan) -> dict[tuple[str, str], list[LinkUse]]:
    """Used link direction → its uses by start time; directions come in the topology's order.

    Cut-through uses all links of a segment at once, store-and-forward one after another (Pal et al. 2019, eq. 11).
    """
    ends = ((link.source, link.target) for link in plan.topology.links)
    uses: dict[tuple[str, str], list[LinkUse]] = {hop: [] for pair in ends for hop in (pair, pair[::-1])}
    for transfer in plan.transfers:
        for part, segment in enumerate(transfer.segments):
            held = link_holds(plan.topology, segment.route, transfer.bytes, plan.options.delay, float)
            # A plan file may round times, so no use outlasts the segment, and the last link is used to the end.
            for hop, (_, begin_s, until_s) in zip(segment.route, held, strict=True):
                here_s = min(segment.start_s + begin_s, segment.end_s)
                there_s = segment.end_s if until_s == held[-1][2] else min(segment.start_s + until_s, segment.end_s)
                uses[hop].append(LinkUse(transfer, part, here_s, there_s))
    return {hop: sorted(found, key=lambda use: use.start_s) for hop, found in uses.items() if found}
