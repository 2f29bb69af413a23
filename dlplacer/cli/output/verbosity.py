"""How much a command says besides its results: ``-q`` errors and warnings alone, ``-v`` every step."""

import argparse
import sys

QUIET, NORMAL, VERBOSE = -1, 0, 1
_level = NORMAL


def add_verbosity_options(parser: argparse.ArgumentParser) -> None:
    """The options ``-v`` and ``-q``; on the command line they may stand before or behind the command."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="store_const",
        const=VERBOSE,
        default=argparse.SUPPRESS,
        help="print every step of the progress as a line",
    )
    group.add_argument(
        "-q",
        "--quiet",
        dest="verbosity",
        action="store_const",
        const=QUIET,
        default=argparse.SUPPRESS,
        help="no progress and no notes: results, warnings and errors alone",
    )


def set_verbosity(level: int) -> None:
    """Set it for this process."""
    global _level
    _level = level


def verbosity() -> int:
    """`QUIET`, `NORMAL` or `VERBOSE`."""
    return _level


def note(text: str) -> None:
    """Tell the user something on stderr, unless it shall be quiet."""
    if _level > QUIET:
        print(f"dlplacer: {text}", file=sys.stderr)
