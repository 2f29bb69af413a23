"""Random machines for programs of three devices, and what lowering makes of random plans on them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runtime.random_graphs import DEVICES, random_graph, random_order

from dlplacer.core.graph import OpGraph
from dlplacer.runtime.program.program import (
    Action,
    DeviceMemorySpace,
    MemorySpaces,
    Program,
    lower_stages,
    with_streams,
)

GPU0 = DeviceMemorySpace("cuda:0", has_streams=True)
GPU1 = DeviceMemorySpace("cuda:1", has_streams=True)
FORCED = DeviceMemorySpace("cuda:0", has_streams=True, copies=True)
CORE = DeviceMemorySpace()
AWAY = DeviceMemorySpace(away=True)
AWAY_ON_GPU = DeviceMemorySpace("", away=True)


@dataclass(frozen=True)
class Lowered:
    """A random plan, lowered for a random machine."""

    graph: OpGraph
    spaces: MemorySpaces
    empty: frozenset[str]
    plain: list[Program]
    programs: list[Program]

    def changed(self, stage: int, device: str, actions: list[Action]) -> "Lowered":
        """The same with other actions on one device in one stage."""
        programs = list(self.programs)
        programs[stage] = Program({**programs[stage].actions, device: tuple(actions)})
        return replace(self, programs=programs)

    def places(self, *kinds: type) -> Iterator[tuple[int, str, int]]:
        """(stage, device, position) of all actions of some kinds."""
        for stage, program in enumerate(self.programs):
            for device, actions in program.actions.items():
                for position, action in enumerate(actions):
                    if isinstance(action, kinds):
                        yield stage, device, position

    def without(self, stage: int, device: str, position: int) -> "Lowered":
        """The same without one action."""
        actions = list(self.programs[stage].actions[device])
        del actions[position]
        return self.changed(stage, device, actions)


def random_sites(chooser: random.Random) -> MemorySpaces:
    """Three devices, one of which at least has streams and is here."""
    drawn = [chooser.choice([GPU0, GPU0, GPU1, GPU1, FORCED, CORE, AWAY, AWAY_ON_GPU]) for _ in DEVICES[1:]]
    if AWAY in drawn and AWAY_ON_GPU in drawn:
        drawn = [AWAY, AWAY]
    drawn.insert(chooser.randrange(len(DEVICES)), chooser.choice([GPU0, FORCED]))
    return dict(zip(DEVICES, drawn, strict=True))


def random_lowered(seed: int, most: int = 12) -> Lowered:
    """A random plan in one or two programs on random devices."""
    chooser = random.Random(seed)
    graph = random_graph(seed, most)
    order = random_order(graph, seed + 1)
    stages = [order]
    if chooser.random() < 0.5:
        stages = [
            {device: [op for op in ops if graph.op(op).phase == phase] for device, ops in order.items()}
            for phase in ("forward", "backward")
        ]
    keep = {edge.tensor for edge in graph.edges if chooser.random() < 0.1}
    plain = lower_stages(graph, stages, keep)
    empty = frozenset(edge.tensor for edge in graph.edges if not edge.bytes)
    spaces = random_sites(chooser)
    return Lowered(graph, spaces, empty, plain, with_streams(plain, spaces, empty))
