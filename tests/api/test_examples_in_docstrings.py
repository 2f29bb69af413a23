"""Every public function has an example, and all of them run as they are printed."""

import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import dlplacer as dp

MODULES = [
    "dlplacer",
    *(f"dlplacer.api.{name}" for name in ("jobs", "machines", "plot", "running", "scaling", "showing", "solving")),
    *(f"dlplacer.core.{name}" for name in ("graph", "options", "plan", "topology")),
    *("dlplacer.frontend.torch.job", "dlplacer.planning.hybrid", "dlplacer.planning.result"),
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(name), optionflags=FLAGS, extraglobs={"dp": dp})
    assert found.failed == 0


def test_every_public_function_has_an_example() -> None:
    public = [getattr(dp, name) for name in dp.__all__ if callable(getattr(dp, name))]
    functions = [function for function in public if function.__module__.startswith("dlplacer.api")]
    lacking = [function.__name__ for function in functions if ">>>" not in (function.__doc__ or "")]
    assert lacking == ["HtmlPage"]


def test_every_parameter_of_a_public_function_is_documented() -> None:
    for name in dp.__all__:
        function = getattr(dp, name)
        if not inspect.isfunction(function) or not function.__module__.startswith("dlplacer.api"):
            continue
        lines = [line.strip() for line in (function.__doc__ or "").splitlines()]
        named = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        assert [each.name for each in named if each.name not in lines] == [], name
