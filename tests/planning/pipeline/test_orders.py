"""The orders of the schedules, and what playing them gives, against the closed forms."""

import random
from collections.abc import Collection

import pytest

from dlplacer.planning.pipeline.pipeline_plan import Hop, StageTimes, play
from dlplacer.planning.pipeline.schedules import (
    SCHEDULES,
    Action,
    in_flight,
    order_of,
)

FORWARD, INPUT, WEIGHT = 1.0, 1.2, 0.7
SIZES = [(1, 3), (2, 2), (2, 8), (3, 6), (4, 4), (4, 16)]


def closed_form(schedule: str, ranks: int, count: int) -> float:
    both = FORWARD + INPUT + WEIGHT
    return {
        "gpipe": (count + ranks - 1) * both,
        "1f1b": (count + ranks - 1) * both,
        "interleaved": (count + (ranks - 1) / 2) * both,
        "zero-bubble": count * both + (ranks - 1) * (FORWARD + INPUT - WEIGHT),
    }[schedule]


@pytest.mark.parametrize(("ranks", "count"), SIZES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_stages_take_what_the_closed_form_says(schedule: str, ranks: int, count: int) -> None:
    order, parts = order_of(schedule, ranks, count), (1 + (schedule == "interleaved"))
    stages = [StageTimes(FORWARD / parts, (INPUT + WEIGHT) / parts, WEIGHT / parts)] * (ranks * parts)
    timeline = play(order, stages, [Hop()] * (len(stages) - 1))
    wanted_s = closed_form(schedule, ranks, count)
    assert timeline.step_s == pytest.approx(wanted_s)
    assert timeline.bubble == pytest.approx(1 - count * (FORWARD + INPUT + WEIGHT) / wanted_s)


@pytest.mark.parametrize(("schedule", "held"), [("gpipe", [8, 8, 8]), ("1f1b", [3, 2, 1]), ("zero-bubble", [3, 3, 3])])
def test_micro_batches_in_flight(schedule: str, held: list[int]) -> None:
    found = in_flight(order_of(schedule, 3, 8))
    assert [found[stage] for stage in range(3)] == held


def test_unequal_stages_and_transfers_by_hand() -> None:
    """One micro-batch: forward 1, transfer 0.5, forward 2 and backward 4, transfer 0.25, backward 3: 10.75."""
    stages = [StageTimes(1.0, 3.0), StageTimes(2.0, 4.0)]
    timeline = play(order_of("1f1b", 2, 1), stages, [Hop(0.5, 0.25)])
    assert timeline.step_s == pytest.approx(10.75)
    assert [span.end_s - span.begin_s for span in timeline.transfers] == pytest.approx([0.5, 0.25])


def needs(action: Action, stages: int, known: Collection[Action]) -> list[Action]:
    """What an action reads: the pass of the stage before, or behind, and its own forward pass."""
    stage, number = action.stage, action.micro_batch
    if action.kind == "F":
        return [Action(stage - 1, "F", number)] if stage else []
    if action.kind == "W":
        return [Action(stage, "I", number)]
    behind = [Action(stage + 1, kind, number) for kind in "BI"] if stage < stages - 1 else []
    return [Action(stage, "F", number), *(each for each in behind if each in known)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_unequal_stages_take_what_relaxation_gives(schedule: str, seed: int) -> None:
    """The longest path through a graph of passes: each waits for the one before on its rank, and for its data."""
    draw = random.Random(f"{schedule} {seed}")
    ranks = draw.randint(1, 5)
    count = ranks * draw.randint(1, 3)
    order, number = order_of(schedule, ranks, count), ranks * (1 + (schedule == "interleaved"))
    stages = [StageTimes(draw.uniform(0.1, 3), whole := draw.uniform(0.1, 5), whole / 3) for _ in range(number)]
    there_s, back_s = draw.choice([(0.0, 0.0), (0.5, 0.7)])
    timeline = play(order, stages, [Hop(there_s, back_s)] * (number - 1))
    end_s = dict.fromkeys((action for actions in order for action in actions), 0.0)
    for _ in range(len(end_s) + 1):
        for actions in order:
            before_s = 0.0
            for action in actions:
                made = needs(action, number, end_s.keys())
                ways_s = {1: there_s, -1: back_s} if ranks > 1 else {}
                data_s = [end_s[each] + ways_s.get(action.stage - each.stage, 0.0) for each in made]
                ready_s = max([before_s, *data_s])
                before_s = end_s[action] = ready_s + stages[action.stage].of(action.kind)
    found = {span.action: span.end_s for spans in timeline.ranks for span in spans}
    assert found == pytest.approx(end_s)
    assert timeline.step_s == pytest.approx(max(end_s.values()))


def test_updates_end_the_step() -> None:
    timeline = play(order_of("1f1b", 1, 2), [StageTimes(1.0, 1.0, update_s=0.5)], [])
    assert timeline.step_s == pytest.approx(4.5)
    assert timeline.bubble == pytest.approx(0.0)
