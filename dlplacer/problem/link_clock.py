"""The links of a machine while a plan is replayed: who may use them when, and when a tensor arrives."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

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
        self._problem = problem
        self._contended = problem.options.contention == "link"
        self._free_s: dict[Hop, float] = {}
        # The same for every replay of a problem, and asked for anew by each of its transfers.
        self._lines: dict[tuple[int, tuple[str, str]], list[_Line]] = problem.derived.setdefault(Network, {})

    def send(self, tensor: str, source: str, pair: tuple[str, str], size: int, ready_s: float) -> Transfer:
        """The transfer of a tensor between a pair of devices, not before it is ready.

        Parameters
        ----------
        size
            Position of its bytes in `Problem.sizes_bytes`.
        """
        if (size, pair) not in self._lines:
            self._lines[size, pair] = list(self._lines_of(size, pair))
        parts = []
        for line in self._lines[size, pair]:
            parts.append(self._segment(line, ready_s))
            ready_s = parts[-1].end_s
        return Transfer(tensor, source, pair[1], self._problem.sizes_bytes[size], tuple(parts))

    def _lines_of(self, size: int, pair: tuple[str, str]) -> Iterator["_Line"]:
        topology, size_bytes = self._problem.topology, self._problem.sizes_bytes[size]
        for segment in segments(topology, self._problem.routes[size][pair]):
            hops = tuple(pairwise(segment))
            links = [topology.link_between[hop] for hop in hops]
            spans = link_spans(links, size_bytes, self._problem.options.delay, float)
            directions = [link.direction(hop) for hop, link in zip(hops, links, strict=True)]
            yield _Line(hops, tuple(zip(directions, spans, strict=True)), spans[-1][1])

    def _segment(self, line: "_Line", ready_s: float) -> TransferSegment:
        start_s = ready_s
        if self._contended:
            for direction, (begin_s, _) in line.spans:
                start_s = max(start_s, self._free_s.get(direction, 0.0) - begin_s)
            for direction, (_, until_s) in line.spans:
                self._free_s[direction] = start_s + until_s
        return TransferSegment(line.hops, start_s, start_s + line.length_s)


class _Line(NamedTuple):
    """A route segment for tensors of a size: its links, when each is held from its start, and its length."""

    hops: tuple[Hop, ...]
    spans: tuple[tuple[Hop, tuple[float, float]], ...]
    length_s: float
