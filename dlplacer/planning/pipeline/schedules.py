"""The orders in which ranks run micro-batches: GPipe, 1F1B, interleaved 1F1B, zero-bubble."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One pass of one micro-batch through one stage; ``2F0`` is stage 2, forward, micro-batch 0.

    `kind`: ``F``: forward; ``B``: backward; ``I`` and ``W``: backward for only the inputs, and for only the weights.
    """

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[tuple[Action, ...], ...]
"""[rank] → its actions in order."""


def stage_ranks(order: Order) -> dict[int, int]:
    """Stage → the rank that runs it."""
    return {action.stage: rank for rank, actions in enumerate(order) for action in actions}


def write_csv(order: Order) -> str:
    """The order in the format of torch's pipeline runtime: a line per rank, actions separated by commas."""
    return "".join(",".join(map(str, actions)) + "\n" for actions in order)


def in_flight(order: Order) -> Mapping[int, int]:
    """Stage → the most micro-batches at any time whose forward pass is done and whose backward pass is not.

    With a backward pass in two parts, a micro-batch counts until the second. Without backward passes, the most is 1.
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


def gpipe(ranks: int, micro_batches: int) -> Order:
    """All micro-batches forward, then all backward (Huang et al., 2018)."""
    return tuple(
        tuple(Action(rank, kind, number) for kind in "FB" for number in range(micro_batches)) for rank in range(ranks)
    )


def forward_only(ranks: int, micro_batches: int) -> Order:
    """All micro-batches forward, for inference."""
    return tuple(tuple(Action(rank, "F", number) for number in range(micro_batches)) for rank in range(ranks))


def one_forward_one_backward(ranks: int, micro_batches: int) -> Order:
    """Backward as soon as possible, so that rank r of p holds at most p − r micro-batches (PipeDream-flush)."""
    return tuple(tuple(_alternating(rank, ranks - rank, micro_batches)) for rank in range(ranks))


def zero_bubble(ranks: int, micro_batches: int) -> Order:
    """ZB-H1: 1F1B in which rank r delays the backward pass for the weights by r micro-batches."""
    order = []
    for rank in range(ranks):
        actions: list[Action] = []
        waiting: list[int] = []
        for action in _alternating(rank, ranks - rank, micro_batches):
            if action.kind == "F":
                actions.append(action)
                continue
            actions.append(Action(rank, "I", action.micro_batch))
            waiting.append(action.micro_batch)
            if len(waiting) > rank:
                actions.append(Action(rank, "W", waiting.pop(0)))
        actions.extend(Action(rank, "W", number) for number in waiting)
        order.append(tuple(actions))
    return tuple(order)


def interleaved(ranks: int, micro_batches: int, per_rank: int = 2) -> Order:
    """1F1B with `per_rank` stages per rank, for a smaller bubble (Narayanan et al., 2021); rank k mod p runs stage k.

    Raises InputError if p, the number of ranks, does not divide the number of micro-batches.
    """
    if micro_batches % ranks:
        raise InputError(f"interleaved: {micro_batches} micro-batches on {ranks} devices; use a multiple of {ranks}")
    total = per_rank * micro_batches
    order = []
    for rank in range(ranks):
        warm_up = min(total, 2 * (ranks - rank - 1) + (per_rank - 1) * ranks)
        forward = [_interleaved_pass(step, rank, ranks, per_rank, "F") for step in range(total)]
        backward = [_interleaved_pass(step, rank, ranks, per_rank, "B") for step in range(total)]
        actions = forward[:warm_up]
        for ahead, behind in zip(forward[warm_up:], backward, strict=False):
            actions += [ahead, behind]
        order.append((*actions, *backward[total - warm_up :]))
    return tuple(order)


SCHEDULES: dict[str, Callable[[int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}
"""Name → function from ranks and micro-batches to an order; interleaved has two stages per rank, the others one."""

MOST_MICRO_BATCHES = 2**16
"""Limit on micro-batches: a schedule lists all their passes, and longer lists would take most of the time."""


def order_of(schedule: str, ranks: int, micro_batches: int, trains: bool = True) -> Order:
    """The order of a schedule by name; without a backward pass all schedules are the same."""
    if schedule not in SCHEDULES:
        raise InputError(f"there is no schedule {schedule!r}; use one of {', '.join(SCHEDULES)}")
    if ranks < 1 or micro_batches < 1:
        raise InputError(f"a pipeline of {ranks} devices and {micro_batches} micro-batches; both must be at least 1")
    if micro_batches > MOST_MICRO_BATCHES:
        raise InputError(f"{micro_batches} micro-batches; at most {MOST_MICRO_BATCHES} are planned, pass by pass")
    return SCHEDULES[schedule](ranks, micro_batches) if trains else forward_only(ranks, micro_batches)


def _alternating(stage: int, warm_up: int, micro_batches: int) -> Iterator[Action]:
    """Forward passes to warm up, then alternating backward and forward passes, then the remaining backward passes."""
    ahead = min(warm_up, micro_batches)
    yield from (Action(stage, "F", number) for number in range(ahead))
    for number in range(micro_batches):
        yield Action(stage, "B", number)
        if ahead + number < micro_batches:
            yield Action(stage, "F", ahead + number)


def _interleaved_pass(step: int, rank: int, ranks: int, per_rank: int, kind: str) -> Action:
    """The step-th forward or backward action of a rank: rounds of p micro-batches, stage by stage."""
    round_number, within = divmod(step, ranks * per_rank)
    chunk, number = divmod(within, ranks)
    chunk = chunk if kind == "F" else per_rank - 1 - chunk
    return Action(chunk * ranks + rank, kind, round_number * ranks + number)
