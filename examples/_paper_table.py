"""What the scripts ``paper_*.py`` share: the numbers of a paper beside those computed here, as a table or as JSON.

A script makes a `Number` for everything that the text states and that can be computed, and an `Unreproducible` for what
cannot, and hands both to `report`, which also reads ``--json``.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number of the paper and the same number computed here.

    Attributes
    ----------
    name
        What it is, with its unit.
    paper
        As the text has it; None where the text implies it without saying it.
    here
        As computed.
    inputs
        Whether the text gives every input: ``yes``, or what had to be derived or assumed.
    note
        A caveat, or an empty text.
    """

    name: str
    paper: float | None
    here: float
    inputs: str = "yes"
    note: str = ""

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
    """Print the table of a script, or with ``--json`` on its command line a list of {name, paper, here}."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of {name, paper, here}")
    if parser.parse_args().json:
        print(json.dumps([{"name": each.name, "paper": each.paper, "here": each.here} for each in numbers], indent=1))
    else:
        _print(title, numbers, missing)


def _print(title: str, numbers: Sequence[Number], missing: Sequence[Unreproducible]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("number", "paper", "here", "difference", "inputs given?", title=title)
    for each in numbers:
        difference = "-" if each.difference is None else f"{100 * each.difference:+.2f} %"
        paper = "not in the text" if each.paper is None else _figures(each.paper)
        table.add_row(each.name, paper, _figures(each.here), difference, each.inputs)
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
