"""Actions of all devices → the order in which one thread issues them, with runs of ops kept together."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlplacer.runtime.program.program import Action, Compute, Free, Program, Recv, Send


class IssuedActions(NamedTuple):
    """Actions of one device that are issued at once: a run of COMPUTE and FREE, or one other action."""

    device: str
    actions: tuple[Action, ...]


def issue_order(
    program: Program, kind_of: Callable[[str], object], longest: int, starts: Mapping[str, float]
) -> Iterator[IssuedActions]:
    """The actions of all devices in one order: a RECV after its SEND, and else by planned start.

    Ops of an equal kind may share a segment of at most `longest` actions; an op of kind None is alone. An op without a
    planned start, in any unit, starts with the op before it.
    """
    parts = {name: list(_parts(name, actions, kind_of, longest)) for name, actions in program.actions.items()}
    ranks = {name: _ranks(own, starts) for name, own in parts.items()}
    position = dict.fromkeys(parts, 0)
    sent: set[tuple[str, str, str]] = set()

    def is_ready(name: str) -> bool:
        if position[name] == len(parts[name]):
            return False
        action = parts[name][position[name]].actions[0]
        return not isinstance(action, Recv) or (action.tensor, action.source, name) in sent

    while ready := [name for name in parts if is_ready(name)]:
        name = min(ready, key=lambda name: ranks[name][position[name]])
        part = parts[name][position[name]]
        position[name] += 1
        action = part.actions[0]
        if isinstance(action, Send):
            sent.add((action.tensor, name, action.target))
        elif isinstance(action, Recv):
            sent.remove((action.tensor, action.source, name))
        yield part


def _parts(
    device: str, actions: Sequence[Action], kind_of: Callable[[str], object], longest: int
) -> Iterator[IssuedActions]:
    """The actions of a device, cut."""
    run: list[Action] = []
    kinds: list[object] = []
    for action in actions:
        own = kind_of(action.op) if isinstance(action, Compute) else None
        joins = isinstance(action, Free) or (isinstance(action, Compute) and not kinds)
        if run and not joins and not (len(run) < longest and own is not None and own in kinds):
            yield IssuedActions(device, tuple(run))
            run, kinds = [], []
        run.append(action)
        if isinstance(action, Compute):
            kinds = [own]
        elif not isinstance(action, Free):
            yield IssuedActions(device, (action,))
            run = []
    if run:
        yield IssuedActions(device, tuple(run))


def _ranks(parts: Sequence[IssuedActions], starts: Mapping[str, float]) -> list[float]:
    """The planned start of the first op at or behind each part."""
    ranks: list[float] = []
    rank = math.inf
    for part in reversed(parts):
        ops = (action.op for action in part.actions if isinstance(action, Compute))
        rank = min((starts[op] for op in ops if op in starts), default=rank)
        ranks.append(rank)
    return ranks[::-1]
