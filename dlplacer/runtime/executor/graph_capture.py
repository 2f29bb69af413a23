"""The functions of a program's devices → the same with stretches of ops captured as CUDA graphs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable, OpCode
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.captured_segment import CapturedSegment, GraphMemory, SegmentValues
from dlplacer.runtime.executor.compile_program import LONGEST, ActionCompiler, CompiledActions
from dlplacer.runtime.executor.graph_rules import GraphRules, refusal
from dlplacer.runtime.program.actions import Action, Compute, Free, Send
from dlplacer.runtime.program.graph_segments import graph_segments

_LASTING = {"parameter": True, "buffer": True, "constant": True, "mutation": True, "input": False, "tangent": False}
"""Roles that touch a tensor from outside → whether it is the same one in every step."""


@dataclass
class GraphCapture:
    """What is captured in one program.

    Attributes
    ----------
    memory
        Device name in the program → what its graphs share; only where there is a graph.
    reasons
        Why ops are issued one by one, as far as that is known before the first step.
    """

    graph: OpGraph
    executable: Executable
    devices: Mapping[str, RuntimeDevice]
    rules: GraphRules
    memory: dict[str, GraphMemory] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """Every reason once, those of captures first."""
        found = [reason for memory in self.memory.values() for reason in memory.reasons]
        return tuple(dict.fromkeys((*found, *self.reasons)))

    @property
    def replays(self) -> int:
        """How often graphs were replayed."""
        return sum(memory.replays for memory in self.memory.values())

    def compiled(self, name: str, compiler: ActionCompiler, actions: Sequence[Action]) -> CompiledActions:
        """The functions of a device; those of a device without streams are as they are."""
        streams, entries = streams_of(self.devices[name]), [(name, action) for action in actions]
        if streams is None:
            return compiler.compiled((name,), entries, recording=False)
        segments = graph_segments(actions, self._refusal, self._is_work, self.rules.least, LONGEST)
        plain = compiler.compiled((name,), entries, recording=False, cuts=[segment.first for segment in segments])
        if any(segment.captured for segment in segments):
            self.memory[name] = GraphMemory(streams.backend.graph_pool())
        functions = list(plain.functions)
        for number, segment in enumerate(segments):
            if not segment.captured:
                self.reasons += [segment.reason] if segment.reason else []
                continue
            part = actions[segment.first : segment.end]
            ops = [action.op for action in part if isinstance(action, Compute)]
            functions[number] = CapturedSegment(
                plain.functions[number],
                self._values(part, actions),
                streams,
                self.memory[name],
                f"the stretch from op {ops[0]!r} to {ops[-1]!r} on {self.devices[name].name}",
                self.rules.checked,
            )
        return replace(plain, functions=tuple(functions))

    def _refusal(self, op: str) -> str | None:
        return refusal(self.executable.codes[op])

    def _is_work(self, op: str) -> bool:
        """Whether an op enqueues anything."""
        code = self.executable.codes[op]
        return code.role == "mutation" or any(entry.target is not getitem for entry in code.instructions)

    def _values(self, part: Sequence[Action], actions: Sequence[Action]) -> SegmentValues:
        """What a stretch of the actions of a device takes and leaves."""
        made: set[str] = set()
        read: set[str] = set()
        freed: set[str] = set()
        codes = []
        for action in part:
            if isinstance(action, Compute):
                code = self.executable.codes[action.op]
                codes.append(code)
                read.update(name for name in _used(code) if name not in made)
                made.update(code.results, (edge.tensor for edge in self.graph.edges_from[action.op]))
            elif isinstance(action, Free) and action.tensor not in made:
                freed.add(action.tensor)
        away = {action.tensor for action in actions if isinstance(action, Send) and action.target not in self.devices}
        # Those of this device: a parameter that came from another one is another copy in every step.
        here = [self.executable.codes[action.op] for action in actions if isinstance(action, Compute)]
        lasting = read.intersection(code.value for code in here if _LASTING.get(code.role))
        return SegmentValues(
            read=frozenset(read),
            freed=frozenset(freed),
            bound={code.op: _LASTING[code.role] for code in codes if code.role in _LASTING},
            mutated=frozenset(code.op for code in codes if code.role == "mutation"),
            parameters=frozenset(lasting),
            # What another process reads is copied as well: nothing here waits until it has been sent.
            fresh=self.executable.returned | away,
        )


def _used(code: OpCode) -> tuple[str, ...]:
    """What an op reads to compute; the end of a gradient only says where it is."""
    return () if code.role == "gradient" else code.reads
