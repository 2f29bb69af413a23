"""The assumptions of a solve."""

from dataclasses import fields

import pytest

from dlplacer.core.errors import InputError
from dlplacer.core.options import CHOICES, Options


def test_every_option_has_choices_and_the_first_is_the_default() -> None:
    assert {entry.name: entry.default for entry in fields(Options)} == {
        name: choices[0] for name, choices in CHOICES.items()
    }


def test_the_papers_assumptions() -> None:
    assert Options.paper().to_dict() == {
        "contention": "none",
        "delay": "store-and-forward",
        "routing": "free",
        "transfers": "edge",
        "memory": "sum",
        "step": "joint",
        "objective": "makespan",
    }


@pytest.mark.parametrize("name", CHOICES)
def test_unknown_values_are_refused_with_the_known_ones(name: str) -> None:
    known = repr(CHOICES[name][0])
    with pytest.raises(InputError, match=f"{name} must be {known}"):
        Options(**{name: "maybe"})
