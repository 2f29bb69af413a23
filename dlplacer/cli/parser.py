"""The parser and the help of a command, built from the declared parameters."""

import argparse
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import dlplacer as dp
from dlplacer.api.parameters import ASSUMED, DECLARED, KINDS, Parameter, declared, parameters_of, pictures
from dlplacer.core.errors import InputError

_HEAD = "examples:"


class Given(dict[str, Any]):
    """The arguments of a command by parameter; omitted arguments are missing, so that defaults apply."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def of(self, function: Callable[..., Any]) -> dict[str, Any]:
        """The arguments of the command that a function takes."""
        return {name: self[name] for name in parameters_of(function) if name in self}


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command that offers a function on the command line.

    `call` names the function in `dlplacer` whose parameters become options; it is empty if the action calls none
    or several. `own` holds the command's own options: a declared option's name, or a row that declares it. `action`
    takes the arguments and returns an exit code; None calls the function, then writes and prints its result. `doing`
    names the work in progress lines; `says` is printed when the first Ctrl-C stops the work. `subject` selects the
    pictures that are offered. Each of `examples` is arguments of ``dlplacer``, then ``  # `` and their effect.
    """

    name: str
    help: str
    call: str = ""
    own: tuple[str, ...] = ()
    action: Callable[[Given], int] | None = None
    doing: str = ""
    says: str = ""
    subject: str = ""
    examples: tuple[str, ...] = ()
    below: "tuple[Command, ...]" = ()

    def options(self) -> Iterator[tuple[Parameter, bool]]:
        """Every option, with True if it is required."""
        function = getattr(dp, self.call) if self.call else None
        known = {} if function is None else parameters_of(function)
        signature = {} if function is None else inspect.signature(function).parameters
        # Optional arguments follow required ones.
        for name, each in sorted(known.items(), key=lambda item: "nargs" in item[1].settings):
            if name == "options":
                yield from ((assumed, False) for assumed in ASSUMED)
            elif each.help:
                yield each, name in signature and signature[name].default is inspect.Parameter.empty
        yield from ((DECLARED.get(each) or declared(each), False) for each in self.own)
        yield from ((each, False) for each in pictures(self.subject))


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors name the argument and the help command, without the whole usage."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        """Raise a mistake in the arguments as InputError."""
        raise InputError(f"{message}; see {self.prog} --help")


class _Help(argparse.HelpFormatter):
    """Wraps all text except examples, whose lines are commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEAD) else super()._fill_text(text, width, indent)


def add_command(parent: Any, command: Command) -> None:
    """Add a sub-command with its options or its own sub-commands."""
    lines = (line.partition("  # ") for line in command.examples)
    end = "\n".join([_HEAD, *(f"  # {told}\n  dlplacer {words}" for words, _, told in lines)])
    options: dict[str, Any] = {"epilog": end} if command.examples else {}
    made = parent.add_parser(command.name, help=command.help, description=command.help, **options)
    add_quiet(made)
    if command.below:
        inner = made.add_subparsers(dest="below", required=True, metavar="ACTION")
        for one in command.below:
            add_command(inner, one)
        return
    groups: dict[str, Any] = {"": made}
    spelled: dict[str, str] = {}
    for each, required in command.options():
        if each.group not in groups:
            groups[each.group] = made.add_argument_group(each.group)
        _add_parameter(groups[each.group], each, required)
        spelled[each.dest] = each.spellings[0]
    made.set_defaults(spec=command, spelled=spelled)


def _add_parameter(parser: Any, parameter: Parameter, required: bool) -> None:
    def read(text: str) -> Any:
        try:
            return parameter.read(text)
        except (ValueError, InputError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    text = parameter.help.replace("%", "%%") + ("; repeat for several" if parameter.repeat else "")
    settings: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS, **parameter.settings}
    positional = not parameter.spellings[0].startswith("-")
    if not positional:
        settings |= {"dest": parameter.dest, "required": required or settings.get("required", False)}
    if parameter.kind is KINDS["flag"]:
        settings.setdefault("action", "store_true")
    else:
        settings |= {"type": read, "metavar": parameter.metavar or parameter.kind.metavar}
        if parameter.choices and settings["metavar"] is None:
            settings = {**settings, "type": str, "choices": parameter.choices}
        if parameter.repeat:
            settings["action"] = "extend" if parameter.kind in (KINDS["files"], KINDS["texts"]) else "append"
    parser.add_argument(*((parameter.dest,) if positional else parameter.spellings), **settings)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option ``-q``, which may precede or follow the command."""
    text = "print only results, warnings and errors: no progress, no notes"
    parser.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=text)
