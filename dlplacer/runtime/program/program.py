"""Programs: the actions of every device in order, one a line as text, and the order of issue.

COMPUTE, SEND, RECV and FREE are those of every device. For a device with streams a lowering pass adds the others, so
that the order of its streams and the lifetime of the memory that they use are part of the program."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dlplacer.core.errors import InternalError


class _Line:
    """An action's text: its form, with its fields in place of their names."""

    __slots__ = ()
    form: ClassVar[str]

    def __str__(self) -> str:
        values = {name: quoted(getattr(self, name)) for name in re.findall(r"{(\w+)}", self.form)}
        return self.form.format_map(values)


@dataclass(frozen=True, slots=True)
class Compute(_Line):
    """``COMPUTE op``: run an op whose inputs are all on the device."""

    form: ClassVar[str] = "COMPUTE {op}"
    op: str


@dataclass(frozen=True, slots=True)
class Send(_Line):
    """``SEND tensor -> device``: start moving a tensor, and go on."""

    form: ClassVar[str] = "SEND {tensor} -> {target}"
    tensor: str
    target: str


@dataclass(frozen=True, slots=True)
class Recv(_Line):
    """``RECV tensor <- device``: wait until a tensor has arrived."""

    form: ClassVar[str] = "RECV {tensor} <- {source}"
    tensor: str
    source: str


@dataclass(frozen=True, slots=True)
class Free(_Line):
    """``FREE tensor``: drop the reference to a tensor that this device no longer needs."""

    form: ClassVar[str] = "FREE {tensor}"
    tensor: str


@dataclass(frozen=True, slots=True)
class Copy(_Line):
    """``COPY tensor -> device ON stream``: enqueue the copy that the SEND behind it hands over."""

    form: ClassVar[str] = "COPY {tensor} -> {target} ON {stream}"
    tensor: str
    target: str
    stream: str


@dataclass(frozen=True, slots=True)
class RecordEvent(_Line):
    """``RECORD event ON stream``: the event has happened once the stream has finished the work queued so far."""

    form: ClassVar[str] = "RECORD {event} ON {stream}"
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Wait(_Line):
    """``WAIT event ON stream``: the stream goes on once the event has happened; the thread goes on at once."""

    form: ClassVar[str] = "WAIT {event} ON {stream}"
    event: str
    stream: str


@dataclass(frozen=True, slots=True)
class Sync(_Line):
    """``SYNC event``: the thread goes on once the event has happened."""

    form: ClassVar[str] = "SYNC {event}"
    event: str


@dataclass(frozen=True, slots=True)
class Hold(_Line):
    """``HOLD tensor FOR stream``: once the tensor is freed, its memory waits for the work queued there by then."""

    form: ClassVar[str] = "HOLD {tensor} FOR {stream}"
    tensor: str
    stream: str


StreamAction = Copy | RecordEvent | Wait | Sync | Hold
Action = Compute | Send | Recv | Free | StreamAction
Actions = tuple[Action, ...]


def quoted(name: str) -> str:
    """The name itself, or a JSON string if it has spaces or quotes, or is empty."""
    return name if re.fullmatch(r'[^\s"]+', name) else json.dumps(name)


@dataclass(frozen=True)
class Program:
    """Device name → its actions in order; tensors cross devices through matching SEND and RECV."""

    actions: Mapping[str, Actions]

    def __str__(self) -> str:
        lines = []
        for device, entries in self.actions.items():
            lines += [f"DEVICE {quoted(device)}", *(f"  {action}" for action in entries)]
        return "\n".join(lines) + "\n"

    def line(self, device: str, position: int) -> int:
        """Number of the line on which an action of a device prints, from 1."""
        before = list(self.actions)[: list(self.actions).index(device)]
        return sum(1 + len(self.actions[name]) for name in before) + position + 2

    def where(self, device: str, position: int) -> str:
        """An action of a device for messages: ``gpu0, line 7: SEND x -> gpu1``."""
        return f"{device}, line {self.line(device, position)}: {self.actions[device][position]}"


def interleaved(program: Program) -> Iterator[tuple[str, int, Action]]:
    """(device, position, action) for all actions in an order in which threads can take them: a RECV after its SEND.

    Every device goes on as far as it can. InternalError if the program hangs.
    """
    position = dict.fromkeys(program.actions, 0)
    single = {name: [(action,) for action in actions] for name, actions in program.actions.items()}
    for device, (action,) in _issued(program, single, {name: [0.0] * len(own) for name, own in single.items()}):
        yield device, position[device], action
        position[device] += 1


def issue_order(
    program: Program, kind_of: Callable[[str], object], longest: int, starts: Mapping[str, float]
) -> Iterator[tuple[str, Actions]]:
    """(device, actions that are issued at once) for all devices: a RECV after its SEND, and else by planned start.

    At once are issued a run of COMPUTE and FREE, or one other action. Ops of an equal kind may share a run of at most
    `longest` actions; an op of kind None is alone. An op without a planned start, in any unit, starts with the op
    before it.
    """
    parts = {name: list(_parts(actions, kind_of, longest)) for name, actions in program.actions.items()}
    return _issued(program, parts, {name: _ranks(own, starts) for name, own in parts.items()})


def _issued(
    program: Program, parts: Mapping[str, Sequence[Actions]], ranks: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, Actions]]:
    """The parts of all devices, of those that are ready the one of the lowest rank; InternalError if none is."""
    turn = dict.fromkeys(parts, 0)
    sent: set[tuple[str, str, str]] = set()

    def is_ready(name: str) -> bool:
        if turn[name] == len(parts[name]):
            return False
        action = parts[name][turn[name]][0]
        return not isinstance(action, Recv) or (action.tensor, action.source, name) in sent

    while ready := [name for name in parts if is_ready(name)]:
        name = min(ready, key=lambda name: ranks[name][turn[name]])
        part = parts[name][turn[name]]
        turn[name] += 1
        action = part[0]
        if isinstance(action, Send):
            sent.add((action.tensor, name, action.target))
        elif isinstance(action, Recv):
            sent.remove((action.tensor, action.source, name))
        yield name, part
    stuck = [
        f"{name} waits at {own[turn[name]][0]} (line {program.line(name, sum(map(len, own[: turn[name]])))})"
        for name, own in parts.items()
        if turn[name] < len(own)
    ]
    if stuck:
        raise InternalError(f"the program would hang: {'; '.join(stuck)}")


def _parts(actions: Sequence[Action], kind_of: Callable[[str], object], longest: int) -> Iterator[Actions]:
    """The actions of a device, cut."""
    run: list[Action] = []
    kinds: list[object] = []
    for action in actions:
        own = kind_of(action.op) if isinstance(action, Compute) else None
        joins = isinstance(action, Free) or (isinstance(action, Compute) and not kinds)
        if run and not joins and not (len(run) < longest and own is not None and own in kinds):
            yield tuple(run)
            run, kinds = [], []
        run.append(action)
        if isinstance(action, Compute):
            kinds = [own]
        elif not isinstance(action, Free):
            yield tuple(run)
            run = []
    if run:
        yield tuple(run)


def _ranks(parts: Sequence[Actions], starts: Mapping[str, float]) -> list[float]:
    """The planned start of the first op at or behind each part."""
    ranks: list[float] = []
    rank = math.inf
    for part in reversed(parts):
        ops = (action.op for action in part if isinstance(action, Compute))
        rank = min((starts[op] for op in ops if op in starts), default=rank)
        ranks.append(rank)
    return ranks[::-1]
