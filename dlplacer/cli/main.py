"""``dlplacer``: parse, dispatch, and turn every error into one message and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from dlplacer.cli.arguments.parser import Parser, actions_of, examples
from dlplacer.cli.interruption import INTERRUPTED
from dlplacer.cli.output.streams import end_of_stdout, is_of_stdout, say, usable_streams
from dlplacer.cli.output.verbosity import NORMAL, add_verbosity_options, set_verbosity
from dlplacer.core.errors import DlplacerError, InternalError
from dlplacer.core.version import __version__

# Each is a module of this folder. They import what they need when they run: importing torch alone takes seconds, for
# which --help and a wrong argument should not have to wait.
_COMMANDS = (
    "capture",
    "solve",
    "check",
    "compare",
    "show",
    "explain",
    "run",
    "profile",
    "selftest",
    "topology",
    "groups",
    "epochs",
    "hybrid",
    "pipeline",
    "advise",
    "list",
    "completion",
)
_EPILOG = (
    "exit codes: 0 done (also when interrupted with a plan), 1 internal error or a failing op, 2 bad input, "
    "3 infeasible, 4 no plan within the time limit, 5 a check failed, 130 interrupted without a plan"
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="dlplacer",
        description="Tell where every op of a model should run, prove how good that plan is, and run it there.",
        epilog=_EPILOG,
    )
    parser.add_argument("-V", "--version", action="version", version=f"dlplacer {__version__}")
    add_verbosity_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in _COMMANDS:
        module = import_module(f"dlplacer.cli.{name}")
        end = examples(getattr(module, "EXAMPLES", ()))
        description = getattr(module, "DESCRIPTION", module.HELP)
        command = commands.add_parser(name, help=module.HELP, description=description, epilog=end)
        module.configure(command)
        for inner in (command, *actions_of(command)):
            add_verbosity_options(inner)
        command.set_defaults(action=module.execute)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    with usable_streams():
        try:
            parser = build_parser()
            parsed = parser.parse_args(arguments)
            parsed.words = list(sys.argv[1:] if arguments is None else arguments)
            set_verbosity(getattr(parsed, "verbosity", NORMAL))
            if parsed.command is None:
                # What to do next is no mistake to be scolded for.
                parser.print_help()
                sys.stdout.flush()
                return 0
            code: int = parsed.action(parsed)
            sys.stdout.flush()
            return code
        except DlplacerError as error:
            if os.environ.get("DLPLACER_DEBUG"):
                traceback.print_exc()
            say(str(error))
            return error.exit_code
        except ImportError as error:
            return _missing_package(error)
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED
        except MemoryError:
            say("out of memory; give a smaller problem, or run where there is more")
            return InternalError.exit_code
        except Exception as error:
            if is_of_stdout(error):
                return end_of_stdout(error)
            if os.environ.get("DLPLACER_DEBUG"):
                raise
            say(
                f"internal error: {type(error).__name__}: {error}; set DLPLACER_DEBUG=1 for the traceback and please "
                "report it"
            )
            return InternalError.exit_code


def _missing_package(error: ImportError) -> int:
    extras = {"torch": "torch", "matplotlib": "plot"}
    extra = extras.get((error.name or "").split(".")[0])
    if extra is None:
        say(f"internal error: {error}")
        return InternalError.exit_code
    say(f"this needs {error.name}; install it with: pip install 'dlplacer[{extra}]'")
    return 2
