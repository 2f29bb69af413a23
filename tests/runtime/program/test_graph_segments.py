"""Which stretches of a device's actions can be graphs."""

import random

import pytest

from dlplacer.runtime.program.actions import Action, Compute, Copy, Free, Record, Recv, Send, Wait
from dlplacer.runtime.program.graph_segments import graph_segments

ORDERING: list[Action] = [Record("e", "compute"), Wait("e", "compute"), Recv("x", "d1"), Send("x", "d1")]


def segments(actions: list[Action], least: int = 2, longest: int = 100) -> list[tuple[int, int, bool]]:
    """Ops called draw… cannot be captured, and those called bring… enqueue nothing."""
    found = graph_segments(
        actions,
        lambda op: "it draws" if op.startswith("draw") else None,
        lambda op: not op.startswith("bring"),
        least,
        longest,
    )
    return [(one.first, one.end, one.captured) for one in found]


def test_what_orders_streams_or_threads_ends_a_stretch() -> None:
    for action in ORDERING:
        actions = [Compute("a"), Compute("b"), Free("x"), action, Compute("c"), Compute("d")]
        assert segments(actions) == [(0, 3, True), (3, 4, False), (4, 6, True)]


def test_an_op_that_draws_stays_outside_and_says_why() -> None:
    actions = [Compute("a"), Compute("b"), Compute("draw"), Compute("c"), Compute("d")]
    assert segments(actions) == [(0, 2, True), (2, 3, False), (3, 5, True)]
    found = graph_segments(actions, lambda op: "it draws" if op == "draw" else None, lambda op: True, 2, 100)
    assert [one.reason for one in found] == ["", "it draws", ""]


def test_short_stretches_are_issued_and_joined() -> None:
    actions = [Compute("a"), Copy("x", "d1", "copy"), Compute("bring b"), Compute("c"), Compute("draw")]
    assert segments(actions) == [(0, 5, False)]
    assert segments([Compute("bring a"), Compute("bring b")]) == [(0, 2, False)]


@pytest.mark.parametrize("seed", range(30))
def test_stretches_are_all_actions_in_order(seed: int) -> None:
    chooser = random.Random(seed)
    actions = [
        chooser.choice([*ORDERING, *[Compute(name) for name in ("a", "b", "c", "draw", "bring")], Free("x")])
        for _ in range(chooser.randrange(40))
    ]
    longest = chooser.choice([3, 7, 100])
    found = segments(actions, least=chooser.choice([1, 2, 3]), longest=longest)
    assert [position for first, end, _ in found for position in range(first, end)] == list(range(len(actions)))
    for first, end, captured in found:
        assert end - first <= longest
        if captured:
            assert all(
                isinstance(action, Free) or (isinstance(action, Compute) and action.op != "draw")
                for action in actions[first:end]
            )
