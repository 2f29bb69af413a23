"""The table of faults names tests that exist."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "faults.md"


def rows() -> list[tuple[str, str, str]]:
    lines = (line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| "))
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [(fault, outcome, test) for fault, outcome, test in cells if fault not in ("fault", "---")]


def test_every_row_names_a_test() -> None:
    found = rows()
    assert len(found) >= 25
    for fault, outcome, test in found:
        assert outcome, fault
        path, _, name = test.strip("`").partition("::")
        functions = [node.name for node in ast.parse((TESTS / path).read_text()).body if hasattr(node, "name")]
        assert name in functions, f"{fault}: there is no {test}"


def test_no_fault_stands_twice() -> None:
    faults = [fault for fault, _, _ in rows()]
    assert len(set(faults)) == len(faults)
