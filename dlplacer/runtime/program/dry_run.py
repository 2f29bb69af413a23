"""Run a program without computing anything: find deadlocks and misuse before a single op runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.program import Program, interleaved


def dry_run(graph: OpGraph, programs: Sequence[Program]) -> None:
    """Return if the programs, run one after another, end, and every op runs once and finds its inputs.

    Raises InternalError naming the actions at which devices wait for each other, the op whose input is missing, the
    event that is not recorded in time, or what is left over; each with its device and line.
    """
    held: dict[str, set[str]] = {}
    done: set[str] = set()
    for program in programs:
        _Stage(graph, program, held, done).run()
    missing = [op.id for op in graph.ops if op.id not in done]
    if missing:
        raise InternalError(f"the program computes {len(done)} of {len(graph.ops)} ops; missing: {missing[:3]}")


class _Stage:
    """One program, with what the devices hold and which ops are done, to which it adds."""

    def __init__(self, graph: OpGraph, program: Program, held: dict[str, set[str]], done: set[str]) -> None:
        self._graph = graph
        self._program = program
        self._held = held
        self._done = done
        self._at = "", 0
        self._sent: set[tuple[str, str]] = set()
        self._copies: dict[tuple[str, str, str], str] = {}
        self._order = _HostOrder()

    def run(self) -> None:
        """Take actions until all are taken, or none can be."""
        for device, position, action in interleaved(self._program):
            self._at = device, position
            self._take(device, action, self._held.setdefault(device, set()))
        if self._sent:
            raise InternalError(f"tensors are sent but never received: {sorted(self._sent)[:3]}")
        if self._copies:
            raise InternalError(f"{next(iter(self._copies.values()))}: the tensor is copied but never sent")

    def _take(self, device: str, action: Action, here: set[str]) -> None:
        """Change what is held, on its way and done."""
        self._order.go_on(device)
        if isinstance(action, Recv):
            self._sent.remove((action.tensor, device))
            self._order.receive(device, action.tensor)
            here.add(action.tensor)
        elif isinstance(action, Compute):
            self._compute(device, action.op, here)
        elif isinstance(action, Record):
            if not self._order.record(device, action.event):
                raise self._error(f"event {action.event!r} has been recorded already")
        elif isinstance(action, (Wait, Sync)):
            if not self._order.has(device, action.event):
                raise self._error(
                    f"event {action.event!r} is not recorded before, or nothing received here says that it is"
                )
        else:
            self._tensor(device, action, here)

    def _tensor(self, device: str, action: Send | Copy | Hold | Free, here: set[str]) -> None:
        """An action on a tensor that the device holds."""
        if action.tensor not in here:
            raise self._error("the tensor is not there")
        if isinstance(action, Free):
            here.remove(action.tensor)
        elif not isinstance(action, Hold):
            self._move(device, action)

    def _move(self, device: str, action: Send | Copy) -> None:
        key = action.tensor, device, action.target
        if isinstance(action, Send) and (action.tensor, action.target) in self._sent:
            raise self._error("the tensor is on its way already")
        if action.target not in self._program.actions:
            raise self._error(f"the program has no device {action.target!r}")
        if isinstance(action, Send):
            self._copies.pop(key, None)
            self._sent.add((action.tensor, action.target))
            self._order.send(device, action.tensor, action.target)
        elif key in self._copies:
            raise self._error("the tensor has been copied already")
        else:
            self._copies[key] = self._program.where(*self._at)

    def _compute(self, device: str, op: str, here: set[str]) -> None:
        line = f"line {self._program.line(*self._at)}"
        if op not in self._graph.index:
            raise InternalError(f"{device} computes op {op!r}, which the graph does not have ({line})")
        if op in self._done:
            raise InternalError(f"{device} computes op {op!r}, which has run already ({line})")
        lacking = [edge.tensor for edge in self._graph.edges_into[op] if edge.tensor not in here]
        if lacking:
            raise InternalError(f"{device} computes op {op!r} without tensor {lacking[0]!r} ({line})")
        here.update(edge.tensor for edge in self._graph.edges_from[op])
        self._done.add(op)

    def _error(self, what: str) -> InternalError:
        return InternalError(f"{self._program.where(*self._at)}: {what}")


@dataclass
class _HostOrder:
    """How far every thread knows the others to be: it learns that from what it receives.

    A stream that waits for an event that is recorded later does not wait at all, so that the order of the threads must
    not be left to chance.
    """

    _known: dict[str, dict[str, int]] = field(default_factory=dict)
    _sent: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    _recorded: dict[str, tuple[str, int]] = field(default_factory=dict)

    def go_on(self, device: str) -> None:
        """A thread turns to its next action."""
        known = self._known.setdefault(device, {})
        known[device] = known.get(device, 0) + 1

    def send(self, device: str, tensor: str, target: str) -> None:
        """A thread hands a tensor over."""
        self._sent[tensor, target] = dict(self._known[device])

    def receive(self, device: str, tensor: str) -> None:
        """A thread takes what was handed over."""
        known = self._known[device]
        for other, count in self._sent.pop((tensor, device)).items():
            known[other] = max(known.get(other, 0), count)

    def record(self, device: str, event: str) -> bool:
        """A thread records an event; False if it has been recorded before."""
        if event in self._recorded:
            return False
        self._recorded[event] = device, self._known[device][device]
        return True

    def has(self, device: str, event: str) -> bool:
        """Whether a thread can be sure that an event is recorded."""
        if event not in self._recorded:
            return False
        recorder, count = self._recorded[event]
        return self._known[device].get(recorder, 0) >= count
