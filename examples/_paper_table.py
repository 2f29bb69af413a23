"""What the scripts ``paper_*.py`` share: statements of a paper beside what is computed here, and on what that rests.

A script lists `Row`s and `Undetermined`s. A row carries a function and its inputs, so that code, and not its author,
tells what a comparison is worth:

stated
    All inputs are numbers of the text: the row compares the text with itself by our formulas.
assumed
    Some input is not in the text; the row names it.
circle
    The text's number is an input of what it is compared with, or some input was solved from it or chosen to fit it: no
    comparison. Code flags equal inputs, even by chance; fitted ones are declared.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, eq=False)
class Given:
    """A number that goes into another.

    Attributes
    ----------
    where
        Where the text prints it; empty where it does not.
    made_from
        What it was computed from; empty for one that was not.
    is_fitted
        True for an assumption that was chosen to give the text's numbers.
    """

    name: str
    value: float
    where: str = ""
    made_from: "tuple[Given, ...]" = ()
    is_fitted: bool = False

    @property
    def is_assumed(self) -> bool:
        """True if it is not in the text, and was not computed from what is."""
        return not (self.where or self.made_from)


def stated(name: str, value: float = math.nan, where: str = "") -> Given:
    """A number that the text prints; without a value, several that are in the function."""
    return Given(name, value, where)


def assumed(name: str, value: float = math.nan) -> Given:
    """An input that the text does not print; without a value, an assumption that is no number."""
    return Given(name, value)


def fitted(name: str, value: float = math.nan) -> Given:
    """An assumption that was chosen to give the text's numbers."""
    return Given(name, value, is_fitted=True)


def derived(name: str, function: Callable[..., float], *inputs: Given) -> Given:
    """What a function makes of other numbers."""
    return Given(name, function(*(each.value for each in inputs)), made_from=inputs)


def origins(inputs: Sequence[Given]) -> Iterator[Given]:
    """The inputs, and all that they were made from."""
    for each in inputs:
        yield each
        yield from origins(each.made_from)


@dataclass(frozen=True, eq=False)
class Row:
    """A statement of a paper: what is computed here, beside the number of the text.

    Attributes
    ----------
    item
        Its subject, with a unit.
    where
        Section, table or figure of the text.
    text
        The number as the text prints it, from whose last digit follows how near ours must come; None where the text
        says nothing, and the number only follows.
    function, inputs
        Ours; assumptions that are no numbers are not handed over.
    note
        A caveat, or why it differs.
    within
        A share by which the text itself allows a number to be off.
    """

    item: str
    where: str
    text: str | None
    function: Callable[..., float]
    inputs: tuple[Given, ...]
    note: str = ""
    within: float = 0.0

    @cached_property
    def here(self) -> float:
        """Our number."""
        return float(self.function(*self._values))

    @property
    def _values(self) -> tuple[float, ...]:
        return tuple(each.value for each in self.inputs if not math.isnan(each.value))

    @property
    def paper(self) -> float | None:
        """The text's number."""
        return None if self.text is None else float(self.text)

    @property
    def basis(self) -> str:
        """``stated``, ``assumed`` or ``circle``."""
        known = list(origins(self.inputs))
        if self.paper is not None and any(each.value == self.paper or each.is_fitted for each in known):
            return "circle"
        return "assumed" if any(each.is_assumed for each in known) else "stated"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The inputs that are not in the text."""
        return tuple(dict.fromkeys(each.name for each in origins(self.inputs) if each.is_assumed))

    @property
    def agrees(self) -> bool | None:
        """True if ours rounds to the text's number, or to a neighbour that is as near; None where it has none."""
        if self.text is None or self.paper is None or self.basis == "circle":
            return None
        unit = 10.0 ** -len(self.text.partition(".")[2])
        is_near = self.paper / (1 + self.within) <= self.here <= self.paper * (1 + self.within)
        return is_near or abs(self.here - self.paper) <= 0.5 * unit * (1 + 1e-9)

    @property
    def verdict(self) -> str:
        """What the comparison says, in a word or two."""
        if self.basis == "circle":
            return "circle: no comparison"
        return {None: "follows", True: "agrees", False: "differs"}[self.agrees]

    def reacts(self) -> bool:
        """True if the number hangs on at least one of its inputs: a constant in disguise does not."""
        values = self._values
        return not values or any(self._moves(values, place) for place in range(len(values)))

    def _moves(self, values: Sequence[float], place: int) -> bool:
        for change in (lambda value: value + 1, lambda value: 2 * value + 1, lambda value: 0.8 * value):
            changed = [*values[:place], change(values[place]), *values[place + 1 :]]
            try:
                if abs(self.function(*changed) - self.here) > 1e-9 * max(1.0, abs(self.here)):
                    return True
            except Exception:  # what refuses another value has looked at it
                return True
        return False

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "item": self.item,
            "where": self.where,
            "paper": self.paper,
            "here": self.here,
            "basis": self.basis,
            "verdict": self.verdict,
            "inputs": [(each.name, None if math.isnan(each.value) else each.value, each.where) for each in self.inputs],
            "assumed": list(self.assumptions),
            "note": self.note,
        }


@dataclass(frozen=True)
class Undetermined:
    """A number, table or figure of the paper that its text does not determine, and why not."""

    item: str
    reason: str


@dataclass(frozen=True)
class Page:
    """All rows of a paper."""

    title: str
    rows: tuple[Row, ...]
    missing: tuple[Undetermined, ...] = ()

    def count(self, verdict: str) -> int:
        """How many rows have this verdict."""
        return sum(row.verdict.startswith(verdict) for row in self.rows)

    def markdown(self) -> str:
        """The page."""
        lines = [f"# {self.title}", "", self.summary(), ""]
        lines += ["| item | where | text | here | verdict | inputs |", "| --- | --- | --- | --- | --- | --- |"]
        for row in self.rows:
            inputs = "; ".join(map(_told, row.inputs))
            note = f" ({row.note})" if row.note else ""
            cells = (row.item, row.where, row.text or "–", figures(row.here), row.verdict + note, inputs)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        if self.missing:
            lines += ["", "## Not determined by the text", ""]
            lines += [f"- {gap.item}: {gap.reason}" for gap in self.missing]
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """How many rows there are of each kind, in a sentence."""
        kinds = ("agrees", "differs", "follows", "circle")
        resting = sum(row.basis == "assumed" for row in self.rows)
        counts = ", ".join(f"{self.count(kind)} {kind}" for kind in kinds)
        return f"{len(self.rows)} rows: {counts}; {resting} rest on an assumption."


def report(page: Page, draw: Callable[[Path], None] | None = None) -> None:
    """Print the page of a script, or with ``--json`` a list of rows; ``--output FOLDER`` draws its figures."""
    parser = argparse.ArgumentParser(description=page.title)
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    if draw is not None:
        parser.add_argument("--output", type=Path, help="a folder for the figures")
    arguments = parser.parse_args()
    if draw is not None and arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        draw(arguments.output)
    if arguments.json:
        print(json.dumps([row.to_dict() for row in page.rows], indent=1))
    else:
        show(page)


def show(page: Page) -> None:
    """Print a table, notes and what is not determined."""
    from rich.console import Console
    from rich.table import Table

    table = Table("item", "where", "text", "here", "verdict", "assumed", title=page.title)
    for row in page.rows:
        text = "-" if row.text is None else row.text
        table.add_row(row.item, row.where, text, figures(row.here), row.verdict, "; ".join(row.assumptions))
    console = Console(width=None if Console().is_terminal else 150, highlight=False, markup=False)
    console.print(table)
    for row in page.rows:
        if row.note:
            console.print(f"{row.item}: {row.note}")
    if page.missing:
        console.print("\nNot determined by the text:")
    for gap in page.missing:
        console.print(f"- {gap.item}: {gap.reason}")


def figures(value: float) -> str:
    """A number in five digits, a whole one in all."""
    if math.isfinite(value) and value == round(value):
        return f"{value:.0f}"
    return f"{value:.5g}"


def _told(given: Given) -> str:
    value = "" if math.isnan(given.value) else f" = {figures(given.value)}"
    origin = f", {given.where}" if given.where else ", derived" if given.made_from else ", assumed"
    origin += " to fit the text" if given.is_fitted else ""
    return f"{given.name}{value}{origin}"
