"""The exceptions of dlplacer; each number below is the exit status of a command that ends with the exception.

DlplacerError 1 ─┬─ InputError 2 ─── FileFormatError 2, CaptureError 2, MismatchError 2
                 ├─ InfeasibleError 3, NoPlanError 4, CheckError 5
                 └─ RunError 1, InternalError 1
"""

from collections.abc import Sequence
from typing import Any


class DlplacerError(Exception):
    """Base of every error that dlplacer raises on purpose."""

    exit_code = 1


class DlplacerWarning(UserWarning):
    """Something that the user should know about a result: an assumption, a doubt, a better option."""


class InputError(DlplacerError):
    """An input of the user cannot be used: a value, a name, a combination of options."""

    exit_code = 2


class FileFormatError(InputError):
    """A file breaks its format; the message has a line per mistake, with the field's path (``nodes[3].time_s``)."""

    def __init__(self, where: str, mistakes: Sequence[str]) -> None:
        self.where = where
        self.mistakes = tuple(mistakes)
        count = "1 mistake" if len(self.mistakes) == 1 else f"{len(self.mistakes)} mistakes"
        super().__init__("\n  ".join([f"{where}: {count}", *self.mistakes]))


class CaptureError(InputError):
    """A model cannot be captured as a graph."""


class MismatchError(InputError):
    """A plan is used with a graph, a machine or a mode that it was not made for."""


class InfeasibleError(DlplacerError):
    """No plan can exist; the message names the constraint to blame, with its numbers."""

    exit_code = 3


class NoPlanError(DlplacerError):
    """No plan was found within the time limit; one may exist."""

    exit_code = 4


class CheckError(DlplacerError):
    """A plan breaks rules of the problem; each violation is a text that starts with the name of the rule."""

    exit_code = 5

    def __init__(self, violations: Sequence[str], file: str | None = None) -> None:
        self.violations = tuple(violations)
        whole = "\n  ".join(["the plan breaks the rules:", *self.violations])
        count = f"violations: {len(self.violations)}, all listed by `dlplacer check {file}`"
        super().__init__(whole if file is None else f"{file} is not a valid plan: {violations[0]}; {count}")


class RunError(DlplacerError):
    """An op failed while a plan was running; the message names the op and its module."""


class InternalError(DlplacerError):
    """dlplacer contradicts itself, e.g. a bound above a checked makespan; `evidence` has the values as plain data."""

    def __init__(self, message: str, **evidence: Any) -> None:
        self.evidence = evidence
        super().__init__(message)


def first_line(error: BaseException) -> str:
    """The first nonempty line of an error's text, or the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
