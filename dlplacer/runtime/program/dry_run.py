"""Run a program without computing anything: find deadlocks and misuse before a single op runs."""

from collections.abc import Sequence

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Hold, Record, Recv, Send, Sync, Wait
from dlplacer.runtime.program.program import Program
from dlplacer.runtime.program.thread_order import HostOrder


def dry_run(graph: OpGraph, programs: Sequence[Program]) -> None:
    """Return if the programs, run one after another, end, and every op runs once and finds its inputs.

    Raises
    ------
    InternalError
        Naming the actions at which devices wait for each other, the op whose input is missing, the event that is not
        recorded in time, or what is left over; each with its device and line.
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
        self._position = dict.fromkeys(program.actions, 0)
        self._sent: dict[tuple[str, str], str] = {}
        self._copies: dict[tuple[str, str, str], str] = {}
        self._order = HostOrder()

    def run(self) -> None:
        """Take actions until all are taken, or none can be."""
        moved = True
        while moved:
            moved = False
            for device, actions in self._program.actions.items():
                here = self._held.setdefault(device, set())
                while self._position[device] < len(actions) and self._take(
                    device, actions[self._position[device]], here
                ):
                    self._position[device] += 1
                    moved = True
        self._require_end()

    def _require_end(self) -> None:
        stuck = [
            f"{device} waits at {actions[self._position[device]]} ({self._line(device)})"
            for device, actions in self._program.actions.items()
            if self._position[device] < len(actions)
        ]
        if stuck:
            raise InternalError(f"the program would hang: {'; '.join(stuck)}")
        if self._sent:
            raise InternalError(f"tensors are sent but never received: {sorted(self._sent)[:3]}")
        if self._copies:
            raise InternalError(f"{next(iter(self._copies.values()))}: the tensor is copied but never sent")

    def _take(self, device: str, action: Action, here: set[str]) -> bool:
        """Whether the action could be taken; changes what is held, on its way and done."""
        if isinstance(action, Recv) and self._sent.get((action.tensor, device)) != action.source:
            return False
        self._order.go_on(device)
        if isinstance(action, Recv):
            del self._sent[action.tensor, device]
            self._order.receive(device, action.tensor)
            here.add(action.tensor)
        elif isinstance(action, Compute):
            self._compute(device, action.op, here)
        elif isinstance(action, (Record, Wait, Sync)):
            self._event(device, action)
        else:
            self._tensor(device, action, here)
        return True

    def _tensor(self, device: str, action: Send | Copy | Hold | Free, here: set[str]) -> None:
        """An action on a tensor that the device holds."""
        if action.tensor not in here:
            raise self._error(device, "the tensor is not there")
        if isinstance(action, Send):
            if (action.tensor, action.target) in self._sent:
                raise self._error(device, "the tensor is on its way already")
            self._require_target(device, action.target)
            self._copies.pop((action.tensor, device, action.target), None)
            self._sent[action.tensor, action.target] = device
            self._order.send(device, action.tensor, action.target)
        elif isinstance(action, Copy):
            self._require_target(device, action.target)
            key = action.tensor, device, action.target
            if key in self._copies:
                raise self._error(device, "the tensor has been copied already")
            self._copies[key] = self._where(device)
        elif isinstance(action, Free):
            here.remove(action.tensor)

    def _event(self, device: str, action: Record | Wait | Sync) -> None:
        if isinstance(action, Record):
            if not self._order.record(device, action.event):
                raise self._error(device, f"event {action.event!r} has been recorded already")
        elif not self._order.has(device, action.event):
            raise self._error(
                device, f"event {action.event!r} is not recorded before, or nothing received here says that it is"
            )

    def _compute(self, device: str, op: str, here: set[str]) -> None:
        line = self._line(device)
        if op not in self._graph.index:
            raise InternalError(f"{device} computes op {op!r}, which the graph does not have ({line})")
        if op in self._done:
            raise InternalError(f"{device} computes op {op!r}, which has run already ({line})")
        lacking = [edge.tensor for edge in self._graph.edges_into[op] if edge.tensor not in here]
        if lacking:
            raise InternalError(f"{device} computes op {op!r} without tensor {lacking[0]!r} ({line})")
        here.update(edge.tensor for edge in self._graph.edges_from[op])
        self._done.add(op)

    def _require_target(self, device: str, target: str) -> None:
        if target not in self._program.actions:
            raise self._error(device, f"the program has no device {target!r}")

    def _error(self, device: str, what: str) -> InternalError:
        return InternalError(f"{self._where(device)}: {what}")

    def _where(self, device: str) -> str:
        return self._program.where(device, self._position[device])

    def _line(self, device: str) -> str:
        return f"line {self._program.line(device, self._position[device])}"
