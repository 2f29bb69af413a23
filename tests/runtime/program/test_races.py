"""The check for races against an oracle: on lowered programs, and on the same programs damaged."""

import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runtime.program.happens_before import has_race
from runtime.program.random_spaces import AWAY_ON_GPU, Lowered, random_lowered

from dlplacer.core.errors import InternalError
from dlplacer.runtime.devices.device_streams import COMPUTE_STREAM
from dlplacer.runtime.program.actions import Copy, Free, Hold, Record, Send, Sync, Wait
from dlplacer.runtime.program.dry_run import dry_run
from dlplacer.runtime.program.program import Program
from dlplacer.runtime.program.races import races, require_no_races

SEEDS = st.integers(0, 10**6)


def runs_dry(lowered: Lowered) -> bool:
    try:
        dry_run(lowered.graph, lowered.programs)
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
    dry_run(lowered.graph, lowered.programs)
    require_no_races(lowered.graph, lowered.programs, lowered.spaces, lowered.empty)
    assert not oracle(lowered)
    assert [Program.parse(str(program)) for program in lowered.programs] == lowered.programs


def may_be_needless(lowered: Lowered, stage: int, device: str, action: Hold) -> bool:
    """What a device receives is always held, since views of it are not known; and so is what it hands over to another
    device as well, whose FREE may come after the copy anyway."""
    actions = lowered.programs[stage].actions[device]
    sends = sum(isinstance(other, Send) and other.tensor == action.tensor for other in actions)
    copies = sum(isinstance(other, Copy) and other.tensor == action.tensor for other in actions)
    return action.stream == COMPUTE_STREAM or sends > copies


# The order that a transport keeps between GPUs of two processes is not made use of.
@given(SEEDS)
@settings(derandomize=True, deadline=None, max_examples=120)
def test_no_wait_and_no_hold_is_left_that_orders_nothing(seed: int) -> None:
    lowered = random_lowered(seed)
    assume(AWAY_ON_GPU not in lowered.spaces.values())
    for stage, device, position in lowered.places(Wait, Sync, Hold):
        action = lowered.programs[stage].actions[device][position]
        if isinstance(action, Hold) and may_be_needless(lowered, stage, device, action):
            continue
        without = lowered.without(stage, device, position)
        assert runs_dry(without)
        assert oracle(without), action
        assert found(without), action


def damaged(lowered: Lowered, chooser: random.Random) -> Lowered:
    """One action on streams, or one FREE, dropped or moved."""
    places = list(lowered.places(Wait, Sync, Hold, Record, Copy, Free, Send))
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
