"""Mutants fit the package as it is: what they replace is there, once, and so are the tests that they name."""

from collections import Counter

import pytest
from mutants.by_hand import MUTANTS, Mutant
from mutants.run import ROOT, mutated

if not (ROOT / "dlplacer").is_dir():
    pytest.skip("the package's source is in the checkout only", allow_module_level=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.name}")
def test_a_mutant_changes_its_file(mutant: Mutant) -> None:
    text = (ROOT / "dlplacer" / mutant.file).read_text(encoding="utf-8")
    assert mutated(text, mutant) != text
    assert all((ROOT / "tests" / test).exists() for test in mutant.tests)


def test_every_room_has_mutants() -> None:
    rooms = {path.name for path in (ROOT / "dlplacer").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {mutant.file.partition("/")[0] for mutant in MUTANTS}
    assert max(Counter((mutant.file, mutant.name) for mutant in MUTANTS).values()) == 1


def test_a_text_that_is_gone_or_not_unique_is_an_error() -> None:
    mutant = Mutant("core/units.py", "nothing", "a + b", "a - b", ())
    assert mutated("return a + b", mutant) == "return a - b"
    for text in ("return a", "a + b == a + b"):
        with pytest.raises(ValueError, match=r"mutant 'nothing' occurs [02] times; correct the mutant"):
            mutated(text, mutant)
