"""The parser of the command line: a wrong argument is reported in one message."""

import argparse
from typing import NoReturn

_BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that names the argument, and where to read on, instead of printing its whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        self.exit(_BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")
