"""A handful of the random moments; ``python tests/faults/random_moments.py --count 1000`` tries many."""

import pytest
from faults.random_moments import COMMANDS, random_moments

pytestmark = pytest.mark.timeout(300)


def test_a_handful_of_moments() -> None:
    endings = random_moments(3, 0, 2, ["version", "solve"])
    assert [(str(ending.moment), ending.mistakes) for ending in endings if ending.mistakes] == []
    assert len(endings) == 3


@pytest.mark.slow
def test_more_moments_of_every_command() -> None:
    endings = random_moments(60, 1, 2, list(COMMANDS))
    assert [(str(ending.moment), ending.mistakes) for ending in endings if ending.mistakes] == []
