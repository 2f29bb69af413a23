"""Pages that are written from the code at every build: the command line and the public names."""

import argparse
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dlplacer.cli.main import build_parser

_WIDTH = "100"
_PYTHON_INTRO = """Python
======

``import dlplacer as dp`` loads none of the heavy packages; each name loads what it needs when it is first used.
"""
_SUMMARY = """.. autosummary::
   :toctree: api
"""
_PACKAGES = {
    "dlplacer": "The package",
    "dlplacer.models": "Models",
    "dlplacer.report.plot": "Pictures",
    "dlplacer.planning.hybrid": "Data parallelism, model parallelism or both",
    "dlplacer.runtime.distributed": "Several processes",
    "dlplacer.data_parallel": "Training on many devices",
}


def write_command_line(path: Path) -> None:
    """The help of every command, from the parsers themselves."""
    os.environ["COLUMNS"] = _WIDTH
    lines = ["# Command line", "", "What `--help` prints, command by command.", ""]
    for name, parser in commands(build_parser()):
        lines += [f"## {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    _write(path, "\n".join(lines))


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser itself and all those below it, by the words that one types."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from commands(below)


def write_python(path: Path) -> None:
    """A page per public name, grouped by package; autosummary and numpydoc make them from the docstrings."""
    parts = [_PYTHON_INTRO]
    pending, stubs = list(_PACKAGES.items()), set()
    while pending:
        package, title = pending.pop(0)
        module = importlib.import_module(package)
        found = {name: getattr(module, name) for name in sorted(_public(module)) if not name.startswith("__")}
        below = {name: value for name, value in found.items() if isinstance(value, ModuleType)}
        pending[:0] = [(value.__name__, f"dp.{name}") for name, value in below.items()]
        rows = "".join(f"   {name}\n" for name in found if name not in below)
        stubs |= {f"{package}.{name}.rst" for name in found if name not in below}
        parts.append(f"{title}\n{'-' * len(title)}\n\n.. currentmodule:: {package}\n\n{_SUMMARY}\n{rows}")
    _write(path, "\n".join(parts))
    # autosummary never removes the page of a name that is gone, and a page that nothing lists is a warning.
    for stub in (path.parent / "api").glob("*.rst"):
        if stub.name not in stubs:
            stub.unlink()


def _public(module: ModuleType) -> list[str]:
    """What a module exports, or the functions that it defines."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def _write(path: Path, text: str) -> None:
    """Only what has changed, so that Sphinx builds no page anew for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
