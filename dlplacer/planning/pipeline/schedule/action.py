"""What a rank of a pipeline does next: actions that print as ``2F0`` and parse back, in the form that torch reads."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError

KINDS = ("F", "B", "I", "W")
"""Forward; whole backward; backward for the inputs alone; backward for the weights alone."""

_TEXT = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One pass of one micro-batch through one stage."""

    stage: int
    kind: str
    micro_batch: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.stage < 0 or self.micro_batch < 0:
            raise InputError(
                f"action {self.stage}{self.kind}{self.micro_batch}: the kind is one of {', '.join(KINDS)}, stage and "
                "micro-batch count from 0"
            )

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action of a text such as ``2F0``.

        Raises
        ------
        InputError
            If the text is no action.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{text!r} is no action; write stage, one of {', '.join(KINDS)} and micro-batch, as in 2F0"
            )
        return cls(int(match[1]), match[2], int(match[3]))


Order = tuple[tuple[Action, ...], ...]
"""[rank] → its actions, one after another."""


def stage_ranks(order: Order) -> dict[int, int]:
    """Stage → the rank that runs it."""
    return {action.stage: rank for rank, actions in enumerate(order) for action in actions}


def require_complete(order: Order) -> None:
    """Every stage runs on one rank, and every micro-batch goes through all of them once each way, or forward alone.

    Raises
    ------
    InputError
        Naming the action that is missing, given twice, or on a second rank.
    """
    seen: dict[Action, int] = {}
    for rank, actions in enumerate(order):
        for action in actions:
            if action in seen:
                raise InputError(f"action {action} is given twice, on rank {seen[action]} and on rank {rank}")
            seen[action] = rank
    ranks = stage_ranks(order)
    for action, rank in seen.items():
        if ranks[action.stage] != rank:
            raise InputError(f"stage {action.stage} runs on ranks {rank} and {ranks[action.stage]}; give it to one")
    trains = any(action.kind != "F" for action in seen)
    for stage in range(max(ranks, default=-1) + 1):
        for micro_batch in range(1 + max(action.micro_batch for action in seen)):
            have = "".join(kind for kind in KINDS if Action(stage, kind, micro_batch) in seen)
            if have not in (("FB", "FIW") if trains else ("F",)):
                wanted = "F and B, or F, I and W" if trains else "F"
                raise InputError(f"stage {stage}, micro-batch {micro_batch} has {have or 'nothing'}; it needs {wanted}")


def write_csv(order: Order) -> str:
    """The order as torch's pipeline runtime reads it: a line per rank, actions separated by commas."""
    return "".join(",".join(map(str, actions)) + "\n" for actions in order)


def read_csv(text: str) -> Order:
    """The order that a text of `write_csv` holds; empty cells are idle slots and left out.

    Raises
    ------
    InputError
        If a cell is no action or the order is not complete.
    """
    rows: Iterable[Sequence[str]] = (line.split(",") for line in text.splitlines() if line.strip())
    order = tuple(tuple(Action.parse(cell) for cell in row if cell.strip()) for row in rows)
    if not order:
        raise InputError("the schedule has no ranks; write a line of actions for each")
    require_complete(order)
    return order


def in_flight(order: Order) -> Mapping[int, int]:
    """Stage → the most micro-batches whose activations it holds at once: forward done, backward not.

    Where the backward is in two parts, activations stay until the second.
    """
    most: dict[int, int] = {}
    for actions in order:
        held: dict[int, int] = {}
        for action in actions:
            if action.kind == "F":
                held[action.stage] = held.get(action.stage, 0) + 1
                most[action.stage] = max(most.get(action.stage, 0), held[action.stage])
            elif action.kind in "BW":
                held[action.stage] = held.get(action.stage, 0) - 1
    if all(action.kind == "F" for actions in order for action in actions):
        return dict.fromkeys(most, 1)
    return most
