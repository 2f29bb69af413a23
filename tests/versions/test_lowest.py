"""The lowest versions that are tested are those that pyproject.toml promises."""

import re
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"

if not PYPROJECT.exists():
    pytest.skip("pyproject.toml is in the checkout only", allow_module_level=True)


def promised() -> dict[str, str]:
    """Package → lower bound, of what the package needs and of the extras that users ask for."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("plot", "partition", "onnx")
    listed = [*project["dependencies"], *(entry for name in names for entry in extras[name])]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,.*)?", entry).groups() for entry in listed)  # type: ignore[union-attr]


def pinned() -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", (HERE / "lowest.txt").read_text()))


@pytest.mark.parametrize("name", sorted(promised()))
def test_the_lowest_version_is_the_lower_bound(name: str) -> None:
    assert f"{pinned()[name]}.".startswith(f"{promised()[name]}.")


def test_the_lowest_python_is_that_of_the_range() -> None:
    oldest = re.search(r"python(\d+\.\d+) -m venv", (PYPROJECT.parent / "Makefile").read_text())
    assert oldest is not None
    assert tomllib.loads(PYPROJECT.read_text())["project"]["requires-python"] == f">={oldest[1]}"
