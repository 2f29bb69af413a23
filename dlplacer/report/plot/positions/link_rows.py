"""The rows in which a Gantt chart shows transfers."""

from collections import defaultdict
from dataclasses import dataclass

from dlplacer.core.plan import Plan
from dlplacer.report.link_use import LinkUse, link_uses

_MOST_ROWS = 10

Hop = tuple[str, str]
"""A link direction."""


@dataclass(frozen=True, eq=False)
class LinkRow:
    """What one row shows.

    Attributes
    ----------
    nodes
        The nodes of a direction, or of several in a chain that always carry the same at the same time; the receiving
        device alone, if the row shows all that arrives there.
    """

    nodes: tuple[str, ...]
    uses: tuple[LinkUse, ...]

    @property
    def device(self) -> str | None:
        """The device below which the row stands; None for a row of link directions."""
        return self.nodes[0] if len(self.nodes) == 1 else None


def link_rows(plan: Plan) -> list[LinkRow]:
    """A row per link direction that is used; where that would be many, one per device for what arrives there.

    Directions that form one route through routers and never carry anything else share a row.
    """
    uses = link_uses(plan)
    alike: dict[object, list[Hop]] = defaultdict(list)
    for hop, found in uses.items():
        alike[tuple((id(use.transfer), use.part, use.start_s, use.end_s) for use in found)].append(hop)
    rows = []
    for hops in alike.values():
        chain = _chain(hops)
        rows += [LinkRow(nodes, tuple(uses[hops[0]])) for nodes in ([chain] if chain else hops)]
    return rows if len(rows) <= _MOST_ROWS else _arriving(plan, uses)


def _chain(hops: list[Hop]) -> tuple[str, ...] | None:
    """The nodes of the route that these directions form in some order; None if they form none."""
    following = dict(hops)
    first = [source for source in following if source not in following.values()]
    if len(following) < len(hops) or len(first) != 1:
        return None
    nodes = first
    while nodes[-1] in following:
        nodes.append(following[nodes[-1]])
    return tuple(nodes) if len(nodes) == len(hops) + 1 else None


def _arriving(plan: Plan, uses: dict[Hop, list[LinkUse]]) -> list[LinkRow]:
    found: dict[str, list[LinkUse]] = {device.id: [] for device in plan.topology.devices}
    for (_, target), passed in uses.items():
        if target in found:
            found[target] += passed
    return [LinkRow((name,), tuple(sorted(here, key=lambda use: use.start_s))) for name, here in found.items() if here]
