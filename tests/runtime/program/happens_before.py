"""An oracle for races: the happens-before relation as a graph of actions, and paths in it.

Every action has a node for its thread; one that is enqueued on a stream has another one for its end there.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from dlplacer.core.graph import OpGraph
from dlplacer.runtime.program.program import (
    Compute,
    Copy,
    Free,
    Hold,
    MemorySpaces,
    Program,
    RecordEvent,
    Recv,
    Send,
    Sync,
    Wait,
    interleaved,
)

Node = tuple[Any, ...]


@dataclass
class Block:
    """Memory: who may allocate it again, what uses it, and what is known where it is given back."""

    owner: tuple[str, str] | None
    written: Node
    uses: set[Node]
    holders: int = 1
    held: set[tuple[str, str]] = field(default_factory=set)
    knows: list[Node] = field(default_factory=list)


def has_race(graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces, empty: Collection[str]) -> bool:
    """Whether anything that must be ordered is not."""
    return bool(_Oracle(graph, programs, spaces, frozenset(empty)).unordered())


class _Oracle:
    def __init__(
        self, graph: OpGraph, programs: Sequence[Program], spaces: MemorySpaces, empty: frozenset[str]
    ) -> None:
        self.graph, self.spaces, self.empty = graph, spaces, empty
        self.order = nx.DiGraph()
        self.required: list[tuple[Node, Node]] = []
        self.freed: list[Block] = []
        blocks: dict[tuple[str, str], Block] = {}
        barrier: Node = ("start",)
        for stage, program in enumerate(programs):
            barrier = self.stage(stage, program, blocks, barrier)

    def unordered(self) -> list[Any]:
        after = {node: nx.descendants(self.order, node) | {node} for node in self.order}
        broken: list[Any] = [pair for pair in self.required if pair[1] not in after[pair[0]]]
        for block in self.freed:
            broken += [use for use in block.uses if not any(known in after[use] for known in block.knows)]
        return broken

    def computing(self, device: str) -> str | None:
        return "compute" if self.spaces[device].has_streams else None

    def stage(self, stage: int, program: Program, blocks: dict[tuple[str, str], Block], barrier: Node) -> Node:
        last: dict[tuple[str, str | None], Node] = defaultdict(lambda: barrier)
        events: dict[str, Node] = {}
        sent: dict[tuple[str, str], tuple[Node, Block]] = {}
        copies: dict[tuple[str, str], Block] = {}
        works: list[Node] = []

        def thread(device: str, position: int) -> Node:
            node = stage, device, position, "thread"
            self.order.add_edge(last[device, None], node)
            last[device, None] = node
            return node

        def work(device: str, position: int, stream: str | None) -> Node:
            """The end of an action on a stream, or on the thread."""
            if stream is None:
                return last[device, None]
            node = stage, device, position, stream
            self.order.add_edge(last[device, stream], node)
            self.order.add_edge(last[device, None], node)
            last[device, stream] = node
            works.append(node)
            return node

        for device, position, action in interleaved(program):
            here = thread(device, position)
            if isinstance(action, Compute):
                node = work(device, position, self.computing(device))
                for tensor in {edge.tensor for edge in self.graph.edges_into[action.op]}:
                    self.read(blocks[device, tensor], node)
                for tensor in {edge.tensor for edge in self.graph.edges_from[action.op]}:
                    owner = (device, "compute") if self.spaces[device].has_streams else None
                    blocks[device, tensor] = Block(owner, node, {node})
            elif isinstance(action, Copy):
                node = work(device, position, action.stream)
                self.read(blocks[device, action.tensor], node)
                copies[action.tensor, action.target] = Block(None, node, {node})
            elif isinstance(action, Send):
                block = self.in_flight(device, action, here, blocks[device, action.tensor], copies)
                sent[action.tensor, action.target] = here, block
                target = self.spaces[action.target]
                if target.away and target.memory:
                    self.required.append((block.written, here))
                elif target.away:
                    relay = stage, device, position, "transport"
                    self.order.add_edge(last[device, self.computing(device)], relay)
                    self.order.add_edge(here, relay)
                    sent[action.tensor, action.target] = relay, block
            elif isinstance(action, Recv):
                sender, block = sent.pop((action.tensor, device))
                self.order.add_edge(sender, here)
                if self.spaces[action.source].away:
                    node = work(device, position, self.computing(device))
                    owner = (device, "compute") if self.spaces[device].has_streams else None
                    block = Block(owner, node, {node})
                blocks[device, action.tensor] = block
            elif isinstance(action, Hold):
                blocks[device, action.tensor].held.add((device, action.stream))
            elif isinstance(action, RecordEvent):
                events[action.event] = work(device, position, action.stream)
            elif isinstance(action, Wait):
                self.order.add_edge(events[action.event], work(device, position, action.stream))
            elif isinstance(action, Sync):
                self.order.add_edge(events[action.event], here)
            elif isinstance(action, Free):
                self.free(device, here, blocks.pop((device, action.tensor)), last, action.tensor in self.empty)
        end: Node = ("end", stage)
        for device in program.actions:
            self.order.add_edge(last[device, None], end)
            self.order.add_edge(last[device, self.computing(device)], end)
        self.required += [(node, end) for node in works]
        return end

    def read(self, block: Block, node: Node) -> None:
        self.required.append((block.written, node))
        block.uses.add(node)

    def in_flight(
        self, device: str, action: Send, here: Node, block: Block, copies: dict[tuple[str, str], Block]
    ) -> Block:
        """The memory that a SEND hands over."""
        source, target = self.spaces[device], self.spaces[action.target]
        if (action.tensor, action.target) in copies:
            return copies.pop((action.tensor, action.target))
        if source.hands_over_to(target) or action.tensor in self.empty:
            block.holders += 1
            return block
        if source.has_streams:
            self.required.append((here, ("no copy",)))
            self.order.add_node(("no copy",))
        else:
            self.read(block, here)
        return Block(None, here, {here})

    def free(self, device: str, here: Node, block: Block, last: Any, is_empty: bool) -> None:
        lines = {line for line in (*block.held, block.owner) if line is not None and line[0] == device}
        block.knows += [here, *(last[line] for line in lines)]
        block.holders -= 1
        if not block.holders and not is_empty:
            self.freed.append(block)
