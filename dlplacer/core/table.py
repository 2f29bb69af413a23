"""Results as tables: one `Table` feeds the terminal, notebooks, CSV files and pandas."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    import pandas

FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "any": lambda value: _told(value),
    "number": lambda value: f"{value:.6g}",
    "seconds": format_seconds,
    "bytes": format_bytes,
    "bytes_per_s": format_bytes_per_s,
    "flops_per_s": lambda value: f"{value / 1e12:.4g} TFLOP/s",
    "percent": lambda value: f"{100 * value:.2f} %",
    "change": lambda value: f"{round(100 * value, 2) + 0.0:+.2f} %",
    "times": lambda value: f"{value:.3f}x",
}
"""Format of a column → the function that writes a value."""

_UNITS = {"_flops_per_s": "flops_per_s", "_bytes_per_s": "bytes_per_s", "_per_s": "number"}
_UNITS |= {"_s": "seconds", "_bytes": "bytes"}
_UNITS |= {"bytes": "bytes", "speedup": "times", "gap": "percent", "bubble": "percent", "gain": "change"}
_ENTRIES = 8
"""Number of entries of a long series that are shown."""


def _told(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        entries = [_told(entry) for entry in value]
        if len(value) > _ENTRIES and all(isinstance(entry, int) for entry in value):
            return f"{entries[0]}-{entries[-1]}" if value[-1] - value[0] < len(value) else ", ".join(entries)
        return ", ".join(entries[:_ENTRIES]) + (f" and {len(entries) - _ENTRIES} more" if entries[_ENTRIES:] else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in frames and CSV files, its heading, its format, and the text for None."""

    name: str
    head: str = ""
    format: str = "text"
    missing: str = "-"

    def cell(self, value: object) -> str:
        """The text of a value of this column."""
        return self.missing if value is None else FORMATS[self.format](value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values with named and formatted columns, and a title."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""

    @classmethod
    def described(cls, rows: Iterable[Any], *columns: str, title: str = "") -> "Table":
        """The table of rows under columns written ``name|head|format|missing``; all parts but the name are optional.

        Rows are tuples, or objects whose attributes have the names of the columns.
        """
        heads = tuple(Column(*text.split("|")) for text in columns)
        values = attrgetter(*(column.name for column in heads))
        return cls(heads, tuple(row if isinstance(row, tuple) else values(row) for row in rows), title)

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]], title: str = "") -> "Table":
        """The table of records, with a column for each key of any record, in order of appearance."""
        heads = tuple(map(column_of, dict.fromkeys(name for record in records for name in record)))
        return cls(heads, tuple(tuple(record.get(column.name) for column in heads) for record in records), title)

    def only(self, *names: str) -> "Table":
        """The table with only these columns, in this order."""
        places = [[column.name for column in self.columns].index(name) for name in names]
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return Table(tuple(self.columns[place] for place in places), rows, self.title)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Rows as dicts from column names to values."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    @property
    def heads(self) -> list[str]:
        """Heading of each column, or its name if it has no heading."""
        return [column.head or column.name for column in self.columns]

    @property
    def sides(self) -> list[str]:
        """Alignment of each column: ``right`` if all values are numbers or None, else ``left``."""
        columns = zip(*self.rows, strict=True)
        figures = [all(isinstance(value, int | float | None) for value in column) for column in columns]
        return ["right" if figure else "left" for figure in figures or [False] * len(self.columns)]

    @property
    def cells(self) -> list[list[str]]:
        """Rows of formatted values."""
        return [[column.cell(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def to_frame(self) -> "pandas.DataFrame":
        """The values as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(list(self.rows), columns=[column.name for column in self.columns])

    def to_csv(self) -> str:
        """The values as comma-separated text."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(self.rows)
        return text.getvalue()


def column_of(name: str) -> Column:
    """The column for values of this name; the ending of the name gives the unit."""
    end = next((end for end in _UNITS if name.endswith(end)), "")
    head = name.removesuffix(end) if end in ("_s", "_bytes") else name
    return Column(name, head.replace("_", " "), _UNITS.get(end, "any"))
