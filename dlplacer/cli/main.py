"""``dlplacer``: parse, dispatch, and turn every error into one message and an exit code."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from dlplacer.cli.actions import answer
from dlplacer.cli.commands import COMMANDS
from dlplacer.cli.interruption import INTERRUPTED
from dlplacer.cli.parser import Given, Parser, add_command, add_quiet
from dlplacer.cli.streams import be_quiet, say, usable_streams
from dlplacer.core.errors import DlplacerError, DlplacerWarning, InternalError
from dlplacer.core.version import __version__

_EPILOG = (
    "exit codes: 0 done (also when interrupted with a plan), 1 internal error or a failing op, 2 bad input, "
    "3 infeasible, 4 no plan within the time limit, 5 a check failed, 130 interrupted without a plan"
)


def build_parser(words: Sequence[str] | None = None) -> Parser:
    """The parser of the command line; only commands in `words` get their options, or all if `words` is None."""
    parser = Parser(
        prog="dlplacer",
        description="Decide where every op of a model should run, prove how good that plan is, and run it.",
        epilog=_EPILOG,
    )
    add_quiet(parser)
    parser.add_argument("-V", "--version", action="version", version=f"dlplacer {__version__}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        if words is None or command.name in words:
            add_command(below, command)
        else:
            below.add_parser(command.name, help=command.help)
    return parser


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print dlplacer's warnings as lines on stderr; leave other warnings unchanged."""

    with warnings.catch_warnings():
        shown: Any = warnings.showwarning
        warnings.simplefilter("always", DlplacerWarning)
        warnings.showwarning = lambda message, kind, *where: (
            say(str(message)) if issubclass(kind, DlplacerWarning) else shown(message, kind, *where)
        )
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    with usable_streams(), _plain_warnings():
        parsed = Given()
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            parser = build_parser(words)
            parsed = Given(vars(parser.parse_args(words)), words=words)
            be_quiet(bool(parsed.quiet))
            if parsed.command is None:
                # A missing command is no mistake; the help lists the commands.
                parser.print_help()
                return 0
            code: int = (parsed.spec.action or answer)(parsed)
            return code
        except DlplacerError as error:
            if os.environ.get("DLPLACER_DEBUG"):
                traceback.print_exc()
            message, spelled = str(error), parsed.spelled or {}
            # A message that begins with a parameter's name gets the option's spelling.
            name = message.split(maxsplit=1)[0].rstrip(":") if message else ""
            say(message.replace(name, spelled[name], 1) if name in spelled else message)
            return error.exit_code
        except ImportError as error:
            return _missing_package(error)
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED
        except Exception as error:
            # An OSError without a file name is about stdout; `usable_streams` reports it.
            if isinstance(error, OSError) and error.filename is None:
                raise
            if os.environ.get("DLPLACER_DEBUG"):
                raise
            say(
                f"internal error: {type(error).__name__}: {error}; set DLPLACER_DEBUG=1 for the traceback and please "
                "report it"
            )
            return InternalError.exit_code


def _missing_package(error: ImportError) -> int:
    extras = {"torch": "torch", "matplotlib": "plot", "onnx": "onnx"}
    extra = extras.get((error.name or "").split(".")[0])
    if extra is None:
        say(f"internal error: {error}")
        return InternalError.exit_code
    say(f"this needs {error.name}; install it with: pip install 'dlplacer[{extra}]'")
    return 2
