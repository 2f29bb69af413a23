"""The parser of the command line: a wrong argument is reported in one message, and help ends with examples."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

_BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that names the argument, and where to read on, instead of printing its whole usage."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        self.exit(_BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help text. argparse would drop an error of writing it, and with it a help text that nobody sees."""
        with contextlib.suppress(*(() if file is sys.stdout else (OSError,))):
            (file or sys.stderr).write(message)


class _Help(argparse.HelpFormatter):
    """Wraps all text but examples, whose lines are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_HEAD):
            return text
        return super()._fill_text(text, width, indent)


_HEAD = "examples:"


def examples(rows: Sequence[tuple[str, str]]) -> str:
    """The end of a command's help: each example under a comment that says what it is for.

    Parameters
    ----------
    rows
        (arguments of ``dlplacer``, what they do).
    """
    return "\n".join([_HEAD, *(f"  # {comment}\n  dlplacer {command}" for command, comment in rows)]).replace("%", "%%")


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of a command's own sub-commands."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += list(action.choices.values())
    return found
