"""Results as tables: one `Table` feeds the terminal, notebooks, CSV files and pandas."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    import pandas

    from dlplacer.core.graph import OpGraph
    from dlplacer.core.plan import Plan
    from dlplacer.core.topology import Topology

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

_UNITS = {
    "_flops_per_s": "flops_per_s",
    "_bytes_per_s": "bytes_per_s",
    "_per_s": "number",
    "_s": "seconds",
    "_bytes": "bytes",
}
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
        """The table of rows under columns given as ``name|head|format|missing``; all parts but the name are optional.

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
        """Headings of the columns; the name if a column has none."""
        return [column.head or column.name for column in self.columns]

    @property
    def sides(self) -> list[str]:
        """Alignment of each column: texts left, figures right."""
        figures = [
            all(isinstance(value, (int, float, type(None))) for value in column)
            for column in zip(*self.rows, strict=True)
        ]
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
    """The column for figures of this name, whose ending gives their unit."""
    end = next((end for end in _UNITS if name.endswith(end)), "")
    head = name.removesuffix(end) if end in ("_s", "_bytes") else name
    return Column(name, head.replace("_", " "), _UNITS.get(end, "any"))


def figures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each single figure in an object that ``--json`` prints, including those of nested objects."""
    found = []
    for name, value in record.items():
        column, is_series = column_of(name), isinstance(value, (list, tuple))
        if isinstance(value, Mapping) and not any(isinstance(entry, (Mapping, list)) for entry in value.values()):
            inner = value.items() if column.format == "any" else ()
            found += [(f"{column.head} {one}", text) for one, text in figures(dict(inner))]
            found += [(f"{column.head} {one}", column.cell(entry)) for one, entry in value.items() if not inner]
        elif is_series and column.format != "any":
            found.append((column.head, ", ".join(map(column.cell, value))))
        elif value not in (None, "", [], ()) and not isinstance(value[0] if is_series else value, (Mapping, list)):
            found.append((column.head, column.cell(value)))
    return found


def tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """A table for each list of records and each dict of records in what ``--json`` prints."""
    for name, value in record.items():
        title = name.replace("_", " ")
        if isinstance(value, Mapping) and value and all(isinstance(entry, Mapping) for entry in value.values()):
            yield Table.of([{title: key, **entry} for key, entry in value.items()], title=title)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            yield Table.of(value, title=title)


_WORK = ("flops", "bytes_accessed", "weight_bytes", "gradient_bytes", "state_bytes", "output_bytes")
_DEVICE = (
    *("device", "type", "memory_bytes|memory|bytes|unlimited", "flops_per_s|float32|flops_per_s"),
    "memory_bytes_per_s|memory rate|bytes_per_s",
)
_ISSUE = ("dispatch_s|dispatch|seconds", "process||text|own")
_LINK = ("source|link", "target|to", "bytes_per_s|rate|bytes_per_s", "latency_s|latency|seconds", "duplex", "count")
_SCHEDULED = ("op", "device", "start_s", "end_s", "time_s", "kind", "phase", "module")
_TRANSFER = ("tensor", "source", "from_device", "to_device", "bytes", "start_s", "end_s", "time_s", "route")
_USE = (
    *("device", "type", "ops", "busy_s|busy|seconds", "idle_s|idle|seconds", "peak_bytes|peak memory|bytes"),
    *("capacity_bytes|capacity|bytes|unlimited", "received_bytes|received|bytes"),
)


def ops(graph: "OpGraph") -> Table:
    """A row per op of a graph, in its order."""
    records = []
    for op in graph.ops:
        times = op.time_s if isinstance(op.time_s, Mapping) else {"": op.time_s}
        record: dict[str, Any] = {"op": op.id, "kind": op.kind, "phase": op.phase, "module": op.module}
        record |= {f"time_s[{kind}]" if kind else "time_s": time_s for kind, time_s in times.items()}
        record |= {name: getattr(op, name) for name in (*_WORK, "workspace_bytes", "footprint_bytes", "colocate")}
        records.append(record)
    return Table.of(records)


def devices(topology: "Topology") -> Table:
    """A row per device of a machine: type, memory and rates, and the issue cost if any device has one."""
    issued = any(device.dispatch_s for device in topology.devices)
    rows = []
    for device in topology.devices:
        rates = device.flops_per_s
        flops = rates.get("float32") if isinstance(rates, Mapping) else rates
        row = (device.id, device.type, device.memory_bytes, flops, device.memory_bytes_per_s)
        rows.append((*row, device.dispatch_s or 0.0, device.process or None) if issued else row)
    return Table.described(rows, *_DEVICE, *(_ISSUE if issued else ()), title=topology.name)


def links(topology: "Topology") -> Table:
    """A row per link of a machine; if any link was timed, also the error of its fit to the timed copies."""
    timed = any("measured" in link.meta or "refused" in link.meta for link in topology.links)
    rows = []
    for link in topology.links:
        row = (link.source, link.target, link.bytes_per_s, link.latency_s, link.duplex, link.count)
        fit = link.meta.get("measured", {}).get("residual", "refused: assumed" if "refused" in link.meta else "assumed")
        rows.append((*row, fit if isinstance(fit, str) else f"{100 * float(fit):.0f} %") if timed else row)
    return Table.described(rows, *_LINK, *(["fit|copies off by"] if timed else []))


def schedule(plan: "Plan") -> Table:
    """A row per op of a plan, by start."""
    rows = []
    for entry in sorted(plan.ops, key=lambda entry: (entry.start_s, entry.end_s)):
        op = plan.graph.op(entry.op)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.op, entry.device, *times, op.kind, op.phase, op.module))
    return Table.described(rows, *_SCHEDULED)


def transfers(plan: "Plan") -> Table:
    """A row per transfer of a plan, by start; the route lists the names of its nodes."""
    rows = []
    for entry in sorted(plan.transfers, key=lambda entry: (entry.start_s, entry.end_s)):
        ends = (plan.placement.get(entry.source), entry.target)
        times = (entry.start_s, entry.end_s, entry.end_s - entry.start_s)
        rows.append((entry.tensor, entry.source, *ends, entry.bytes, *times, " → ".join(entry.nodes)))
    return Table.described(rows, *_TRANSFER)


def device_use(plan: "Plan") -> Table:
    """A row per device of a plan's machine: its times in the step, its memory, and the bytes it receives."""
    counts, received = Counter(plan.placement.values()), Counter[str]()
    for sent in plan.transfers:
        received[sent.target] += sent.bytes
    rows = []
    for device in plan.topology.devices:
        name, memory = device.id, plan.memory.get(device.id)
        busy_s = plan.busy_s[name]
        times = (busy_s, max(0.0, plan.makespan_s - busy_s))
        peak = None if memory is None else memory.peak_bytes
        rows.append((name, device.type, counts[name], *times, peak, device.memory_bytes, received[name]))
    return Table.described(rows, *_USE)
