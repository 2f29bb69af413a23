"""Pages that are written from the code at every build: the command line and the public names."""

import argparse
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from dlplacer.cli.main import build_parser

_WIDTH = "100"
_PYTHON_INTRO = """Python
======

``import dlplacer as dp`` loads none of the heavy packages; each name loads what it needs when it is first used.
"""
_PACKAGES = {
    "dlplacer": "The package",
    "dlplacer.models": "Models",
    "dlplacer.report.plot": "Pictures",
    "dlplacer.planning.hybrid": "Data parallelism, model parallelism or both",
    "dlplacer.runtime.distributed": "Several processes",
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
    for package, title in _PACKAGES.items():
        module = importlib.import_module(package)
        names = sorted(name for name in module.__all__ if not name.startswith("__"))
        parts.append(
            f"{title}\n{'-' * len(title)}\n\n.. currentmodule:: {package}\n\n.. autosummary::\n   :toctree: api\n"
        )
        parts.append("".join(f"   {name}\n" for name in names))
    _write(path, "\n".join(parts))


def _write(path: Path, text: str) -> None:
    """Only what has changed, so that Sphinx builds no page anew for nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
