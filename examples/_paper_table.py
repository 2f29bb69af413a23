"""What the scripts ``paper_*.py`` share: the numbers of a paper beside those computed here, as a table or as JSON.

A script makes a `Number` for everything that can be computed, and an `Unreproducible` for what cannot, and hands both
to `report`, which also reads ``--json``. Every row says on what it rests:

stated
    The paper's text prints the number, and here it is computed from other numbers of the text.
follows
    The text does not print it, but it follows from numbers that the text prints.
assumed
    Something that goes into it is not in the text; the row names it.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number computed here, beside that of the paper where its text prints one.

    Attributes
    ----------
    name
        What it is, with its unit.
    paper
        As the text prints it; None where it does not.
    here
        As computed.
    given
        Numbers of the text that went into the computation. The number itself is never among them: it would stand on
        both sides of the comparison.
    assumed
        What went into it that is not in the text; empty where nothing did.
    note
        A caveat, or an empty text.
    """

    name: str
    paper: float | None
    here: float
    given: tuple[float, ...] = ()
    assumed: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.paper is not None and self.paper in self.given:
            raise ValueError(f"{self.name}: {self.paper:g} is compared with what was computed from it")
        if not self.given and not self.assumed:
            raise ValueError(f"{self.name}: say which numbers of the text it is computed from, or what is assumed")

    @property
    def basis(self) -> str:
        """``stated``, ``follows`` or ``assumed``."""
        return "assumed" if self.assumed else "follows" if self.paper is None else "stated"

    @property
    def difference(self) -> float | None:
        """here ÷ paper − 1; here − paper where the paper says 0; None where it says nothing."""
        if self.paper is None:
            return None
        return self.here / self.paper - 1 if self.paper else self.here - self.paper


@dataclass(frozen=True)
class Unreproducible:
    """A number, table or figure of the paper that its text does not determine, and why not."""

    name: str
    reason: str


def report(title: str, numbers: Sequence[Number], missing: Sequence[Unreproducible] = ()) -> None:
    """Print the table of a script, or with ``--json`` on its command line a list of rows."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of {name, paper, here, basis, assumed}")
    show(title, numbers, missing, parser.parse_args().json)


def show(title: str, numbers: Sequence[Number], missing: Sequence[Unreproducible], as_json: bool) -> None:
    """The table, or the list of rows."""
    if as_json:
        names = ("name", "paper", "here", "basis", "assumed")
        print(json.dumps([{name: getattr(each, name) for name in names} for each in numbers], indent=1))
    else:
        _print(title, numbers, missing)


def _print(title: str, numbers: Sequence[Number], missing: Sequence[Unreproducible]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("number", "paper", "here", "difference", "rests on", title=title)
    for each in numbers:
        difference = "-" if each.difference is None else f"{100 * each.difference:+.2f} %"
        paper = "-" if each.paper is None else _figures(each.paper)
        basis = {"stated": "the text", "follows": "follows from the text"}.get(each.basis, f"assumed: {each.assumed}")
        table.add_row(each.name, paper, _figures(each.here), difference, basis)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    for each in numbers:
        if each.note:
            console.print(f"{each.name}: {each.note}", highlight=False, markup=False)
    if missing:
        console.print("\nCannot be reproduced from the text:")
    for gap in missing:
        console.print(f"- {gap.name}: {gap.reason}", highlight=False, markup=False)


def _figures(value: float) -> str:
    if math.isfinite(value) and value == round(value):
        return f"{value:.0f}"
    return f"{value:.5g}"
