"""Order of ops per device → program: insert sends, receives and frees. Pure functions of data."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge
from dlplacer.runtime.program.program import Action, Compute, Free, Program, Recv, Send

Order = Mapping[str, Sequence[str]]
"""Device name → op ids in execution order."""


def lower(graph: OpGraph, order: Order, keep: Iterable[str] = ()) -> Program:
    """The program that runs all ops of a graph in the given order, which has every op once.

    A tensor goes to a device once, right after its producer; it is received right before its first reader there, and
    freed on each device after its last use there, unless it is among those to `keep`.
    """
    return lower_stages(graph, [order], keep)[0]


def lower_stages(graph: OpGraph, stages: Sequence[Order], keep: Iterable[str] = ()) -> list[Program]:
    """One program for each stage of a step, run one after another on the same devices: forward, then backward.

    What a later stage reads is sent in the stage that makes it, received at that stage's end if nothing there reads it,
    and stays on its device between the programs.
    """
    state = _State(graph, stages, frozenset(keep))
    return [Program({device: tuple(state.actions(device, order)) for device in order}) for order in stages]


@dataclass
class _State:
    graph: OpGraph
    stages: Sequence[Order]
    keep: frozenset[str]
    home: dict[str, str] = field(default_factory=dict)
    here: set[tuple[str, str]] = field(default_factory=set)
    uses_left: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        for order in self.stages:
            for device, ops in order.items():
                self.home.update(dict.fromkeys(ops, device))
        for op in self.graph.ops:
            for tensor in _tensors(self.graph.edges_into[op.id]):
                self.uses_left[tensor, self.home[op.id]] += 1

    def actions(self, device: str, order: Order) -> Iterable[Action]:
        """The actions of one device in one stage."""
        for op in order[device]:
            read = _tensors(self.graph.edges_into[op])
            for tensor, edge in read.items():
                yield from self._receive(tensor, edge.source, device)
            yield Compute(op)
            made = _tensors(self.graph.edges_from[op])
            for tensor in made:
                yield from (Send(tensor, target) for target in self._targets(op, tensor, device))
            for tensor in read:
                self.uses_left[tensor, device] -= 1
            # What is made and read by nobody here (sent only, or not at all) is freed right behind its producer.
            for tensor in (*read, *made):
                if not self.uses_left[tensor, device] and tensor not in self.keep:
                    yield Free(tensor)
        for op in (op for source, ops in order.items() if source != device for op in ops):
            for tensor in _tensors(self.graph.edges_from[op]):
                if device in self._targets(op, tensor, self.home[op]):
                    yield from self._receive(tensor, op, device)

    def _receive(self, tensor: str, producer: str, device: str) -> Iterable[Action]:
        if self.home[producer] != device and (tensor, device) not in self.here:
            self.here.add((tensor, device))
            yield Recv(tensor, self.home[producer])

    def _targets(self, op: str, tensor: str, device: str) -> list[str]:
        readers = (self.home[edge.target] for edge in self.graph.edges_from[op] if edge.tensor == tensor)
        return [target for target in dict.fromkeys(readers) if target != device]


def _tensors(edges: Iterable[Edge]) -> dict[str, Edge]:
    return {edge.tensor: edge for edge in edges}
