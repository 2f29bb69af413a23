"""The links of a machine while a plan is replayed: who may use them when, and when a tensor arrives."""

from itertools import pairwise

from dlplacer.core.plan import Transfer, TransferSegment
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import segments
from dlplacer.problem.segment_timing import link_spans

Hop = tuple[str, str]


class Network:
    """Sends tensors along their routes in the order in which it is asked, each as early as the links allow.

    With ``contention: link`` a link direction (or a half-duplex link as a whole) carries one transfer at a time:
    for how long is said in `dlplacer.problem.segment_timing`. Without contention nothing waits.
    """

    def __init__(self, problem: Problem) -> None:
        self._topology = problem.topology
        self._routes = problem.routes
        self._sizes_bytes = problem.sizes_bytes
        self._delay = problem.options.delay
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
        spans = link_spans(links, size_bytes, self._delay, float)
        directions = [link.direction(hop) for hop, link in zip(hops, links, strict=True)]
        start_s = ready_s
        if self._contended:
            for direction, (begin_s, _) in zip(directions, spans, strict=True):
                start_s = max(start_s, self._free_s.get(direction, 0.0) - begin_s)
            for direction, (_, until_s) in zip(directions, spans, strict=True):
                self._free_s[direction] = start_s + until_s
        return TransferSegment(hops, start_s, start_s + spans[-1][1])
