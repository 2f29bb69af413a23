"""The parser of the command line: a wrong argument is reported in one message."""

import argparse
import contextlib
import sys
from typing import Any, NoReturn

_BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that names the argument, and where to read on, instead of printing its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        self.exit(_BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help text. argparse would drop an error of writing it, and with it a help text that nobody sees."""
        with contextlib.suppress(*(() if file is sys.stdout else (OSError,))):
            (file or sys.stderr).write(message)
