"""The links of a machine while a plan is replayed: who may use them when, and when a tensor arrives."""

from itertools import pairwise

from dlplacer.core.plan import Transfer, TransferSegment
from dlplacer.core.topology import Link
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import segments

Hop = tuple[str, str]


class Network:
    """Sends tensors along their routes in the order in which it is asked, each as early as the links allow.

    With ``contention: link`` a link direction (or a half-duplex link as a whole) carries one transfer at a time:
    cut-through holds all links of a segment together, store-and-forward one after another. Without contention nothing
    waits.
    """

    def __init__(self, problem: Problem) -> None:
        self._topology = problem.topology
        self._routes = problem.routes
        self._sizes_bytes = problem.sizes_bytes
        self._cuts_through = problem.options.delay == "cut-through"
        self._contended = problem.options.contention == "link"
        self._free_s: dict[Hop, float] = {}

    def send(self, tensor: str, source: str, pair: tuple[str, str], size: int, ready_s: float) -> Transfer:
        """The transfer of a tensor between a pair of devices, not before it is ready.

        Parameters
        ----------
        size
            Position of its bytes in `Problem.sizes_bytes`.
        """
        size_bytes = self._sizes_bytes[size]
        parts = []
        for segment in segments(self._topology, self._routes[size][pair]):
            part = self._segment(tuple(pairwise(segment)), size_bytes, ready_s)
            parts.append(part)
            ready_s = part.end_s
        return Transfer(tensor, source, pair[1], size_bytes, tuple(parts))

    def _segment(self, hops: tuple[Hop, ...], size_bytes: int, ready_s: float) -> TransferSegment:
        links = [self._topology.link_between[hop] for hop in hops]
        if self._cuts_through:
            narrowest = min(link.total_bytes_per_s for link in links)
            held_s = [size_bytes / narrowest + sum(link.latency_s for link in links)] * len(links)
            offsets_s = [0.0] * len(links)
            lasts_s = held_s[0]
        else:
            held_s = [size_bytes / link.total_bytes_per_s + link.latency_s for link in links]
            offsets_s = [sum(held_s[:position]) for position in range(len(links))]
            lasts_s = sum(held_s)
        resources = [_resource(hop, link) for hop, link in zip(hops, links, strict=True)]
        start_s = ready_s
        if self._contended:
            for resource, offset_s in zip(resources, offsets_s, strict=True):
                start_s = max(start_s, self._free_s.get(resource, 0.0) - offset_s)
            for resource, offset_s, hold_s in zip(resources, offsets_s, held_s, strict=True):
                self._free_s[resource] = start_s + offset_s + hold_s
        return TransferSegment(hops, start_s, start_s + lasts_s)


def _resource(hop: Hop, link: Link) -> Hop:
    return hop if link.duplex == "full" else (min(hop), max(hop))
