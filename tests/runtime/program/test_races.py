"""The check for races against an oracle: on lowered programs, and on the same programs damaged."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.program.happens_before import has_race
from runtime.program.random_spaces import Lowered, random_lowered

from dlplacer.core.errors import InternalError
from dlplacer.runtime.program.checks import races, require_no_races
from dlplacer.runtime.program.program import Copy, Free, Hold, RecordEvent, Send, Sync, Wait

SEEDS = st.integers(0, 10**6)


def runs_dry(lowered: Lowered) -> bool:
    try:
        races(lowered.graph, lowered.programs)
    except InternalError:
        return False
    return True


def found(lowered: Lowered) -> list[str]:
    return races(lowered.graph, lowered.programs, lowered.spaces, lowered.empty)


def oracle(lowered: Lowered) -> bool:
    return has_race(lowered.graph, lowered.programs, lowered.spaces, lowered.empty)


@given(SEEDS)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_lowered_programs_have_no_races(seed: int) -> None:
    lowered = random_lowered(seed)
    races(lowered.graph, lowered.programs)
    require_no_races(lowered.graph, lowered.programs, lowered.spaces, lowered.empty)
    assert not oracle(lowered)


def damaged(lowered: Lowered, chooser: random.Random) -> Lowered:
    """One action on streams, or one FREE, dropped or moved."""
    places = list(lowered.places(Wait, Sync, Hold, RecordEvent, Copy, Free, Send))
    if not places:
        return lowered
    stage, device, position = chooser.choice(places)
    if chooser.random() < 0.5:
        return lowered.without(stage, device, position)
    actions = list(lowered.programs[stage].actions[device])
    action = actions.pop(position)
    actions.insert(chooser.randint(max(0, position - 6), min(len(actions), position + 6)), action)
    return lowered.changed(stage, device, actions)


@given(SEEDS)
@settings(derandomize=True, deadline=None, max_examples=600)
def test_the_check_agrees_with_the_oracle_on_damaged_programs(seed: int) -> None:
    chooser = random.Random(seed)
    lowered = random_lowered(seed)
    for _ in range(chooser.randint(1, 2)):
        lowered = damaged(lowered, chooser)
    if runs_dry(lowered):
        assert bool(found(lowered)) == oracle(lowered)


def test_the_damage_is_of_every_kind() -> None:
    refused = raced = harmless = 0
    for seed in range(300):
        lowered = damaged(random_lowered(seed), random.Random(seed))
        if not runs_dry(lowered):
            refused += 1
        elif found(lowered):
            raced += 1
        else:
            harmless += 1
    assert min(refused, raced, harmless) > 20
