"""The orders in which ranks take micro-batches: GPipe, 1F1B, interleaved 1F1B, zero-bubble; actions print as 2F0."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One pass of one micro-batch through one stage.

    `kind`: ``F``: forward; ``B``: backward; ``I`` and ``W``: backward for the inputs, and for the weights, alone.
    """

    stage: int
    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Order = tuple[tuple[Action, ...], ...]
"""[rank] → its actions, one after another."""


def stage_ranks(order: Order) -> dict[int, int]:
    """Stage → the rank that runs it."""
    return {action.stage: rank for rank, actions in enumerate(order) for action in actions}


def write_csv(order: Order) -> str:
    """The order as torch's pipeline runtime reads it: a line per rank, actions separated by commas."""
    return "".join(",".join(map(str, actions)) + "\n" for actions in order)


def in_flight(order: Order) -> Mapping[int, int]:
    """Stage → the most micro-batches whose activations it holds at once: forward done, backward not.

    If the backward pass has two parts, activations stay until the second.
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
    """All micro-batches forward: inference."""
    return tuple(tuple(Action(rank, "F", number) for number in range(micro_batches)) for rank in range(ranks))


def one_forward_one_backward(ranks: int, micro_batches: int) -> Order:
    """Backward as soon as there is one to do, so that rank r holds p − r micro-batches at most (PipeDream-flush)."""
    return tuple(tuple(_alternating(rank, ranks - rank, micro_batches)) for rank in range(ranks))


def zero_bubble(ranks: int, micro_batches: int) -> Order:
    """ZB-H1: 1F1B whose backward for the weights waits, on rank r for r further micro-batches."""
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
    """1F1B with several stages a rank, stage k on rank k mod p (Narayanan et al., 2021): smaller stages, less bubble.

    Raises InputError if the micro-batches do not make whole rounds of p.
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
"""Name → the order on so many ranks for so many micro-batches. Interleaved has two stages a rank, the others one."""

MOST_MICRO_BATCHES = 2**16
"""A schedule lists every pass of every micro-batch; with more the list, not the plan, would be the work."""


def order_of(schedule: str, ranks: int, micro_batches: int, trains: bool = True) -> Order:
    """The order of a schedule by name; without a backward pass all schedules are one."""
    if schedule not in SCHEDULES:
        raise InputError(f"there is no schedule {schedule!r}; use one of {', '.join(SCHEDULES)}")
    if ranks < 1 or micro_batches < 1:
        raise InputError(f"a pipeline of {ranks} devices and {micro_batches} micro-batches; both must be at least 1")
    if micro_batches > MOST_MICRO_BATCHES:
        raise InputError(f"{micro_batches} micro-batches; at most {MOST_MICRO_BATCHES} are planned, pass by pass")
    return SCHEDULES[schedule](ranks, micro_batches) if trains else forward_only(ranks, micro_batches)


def _alternating(stage: int, warm_up: int, micro_batches: int) -> Iterator[Action]:
    """Forward passes to warm up, then backward and forward in turn, then the rest of the backward passes."""
    ahead = min(warm_up, micro_batches)
    yield from (Action(stage, "F", number) for number in range(ahead))
    for number in range(micro_batches):
        yield Action(stage, "B", number)
        if ahead + number < micro_batches:
            yield Action(stage, "F", ahead + number)


def _interleaved_pass(step: int, rank: int, ranks: int, per_rank: int, kind: str) -> Action:
    """The step-th forward or backward of a rank: rounds of p micro-batches, stage after stage."""
    round_number, within = divmod(step, ranks * per_rank)
    chunk, number = divmod(within, ranks)
    chunk = chunk if kind == "F" else per_rank - 1 - chunk
    return Action(chunk * ranks + rank, kind, round_number * ranks + number)
