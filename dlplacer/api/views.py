"""Views of results: single facts and tables of each value, for terminal and notebook.

Most views show the entries of ``--json``; the unit at the end of an entry's name decides its format.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dlplacer.check import resource_loads
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, Transfer
from dlplacer.core.table import Table
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.planning.result import FITS_NONE, Result
from dlplacer.planning.tables import device_use, devices, figures, links, ops, schedule, tables

if TYPE_CHECKING:
    from dlplacer.measure.run_report import Run
    from dlplacer.measure.splitting import SplitChoice, SplitResult
    from dlplacer.planning.what_if import WhatWouldHelp
    from dlplacer.report.explanation import Explanation

Facts: TypeAlias = list[tuple[str, str]]
"""Names and printed values of single facts."""

Block: TypeAlias = Facts | Table | str
"""A part of a view; a string is a note."""

_KINDS, _PATH, _CHANGES, _ROWS = 8, 12, 8, 64
"""Largest numbers of rows shown: op kinds, steps of the critical path, changes, and rows of a result's table."""
_TABLES: Mapping[type, Callable[[Any], Table]] = {OpGraph: ops, Topology: devices, Plan: schedule}
_LEAST_GAIN = 0.002
"""Changes with a smaller gain are only counted."""


def blocks_of(value: object) -> Iterator[Block]:
    """The parts of a value's view, in order."""
    view = next((_VIEWS[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in _VIEWS), _told)
    yield from view(value)


def _told(value: Any) -> Iterator[Block]:
    """A value's table, or the tables of its JSON object, then its single facts."""
    record = value if isinstance(value, Mapping) else value.to_dict()
    main = getattr(value, "table", None)
    yield from tables(record) if main is None else (replace(main, rows=main.rows[:_ROWS]),)
    if main is not None and len(main.rows) > _ROWS:
        yield f"{len(main.rows) - _ROWS} more rows: --json and to_frame() have all"
    yield figures({name: entry for name, entry in record.items() if name != "warnings"})


def table_of(value: object) -> Table:
    """The value's own table with all rows and columns, or else the first table of its view."""
    found = _TABLES[type(value)](value) if type(value) in _TABLES else getattr(value, "table", None)
    return found if isinstance(found, Table) else next(each for each in blocks_of(value) if isinstance(each, Table))


def subject_of(value: object) -> str:
    """The names of a value's graph and machine; empty if it has none."""
    if isinstance(value, Plan):
        from dlplacer.report.summary import subject

        return subject(value)
    for attribute in ("plan", "predicted", "base"):
        if isinstance(getattr(value, attribute, None), Plan):
            return subject_of(getattr(value, attribute))
    return getattr(value, "name", "") or ""


def stated(plan: Plan) -> str:
    """The status, bound and gap that a plan file states; loading the file proves none of these."""
    return f"{plan.status}, lower bound {format_seconds(plan.lower_bound_s)}, gap {100 * plan.gap:.2f} %"


def summary(graph: OpGraph) -> dict[str, Any]:
    """The object that ``dlplacer capture --json`` prints for a graph."""
    sums = {name: sum(getattr(op, name) for op in graph.ops) for name in ("flops", "weight_bytes")}
    counts = {"name": graph.name, "ops": len(graph.ops), "edges": len(graph.edges)}
    return {**counts, **sums, "structure_sha256": graph.structure_sha256}


def _graph(graph: OpGraph) -> Iterator[Block]:
    phases = Counter(op.phase or "no phase" for op in graph.ops)
    timed = [op.time_s for op in graph.ops if isinstance(op.time_s, Mapping)]
    serial_s = {kind: sum(times.get(kind, 0.0) for times in timed) for kind in sorted(set().union(*timed))}
    yield figures({**summary(graph), "phases": phases, "one_after_another_s": serial_s, "source": graph.source})
    kinds = Counter(op.kind for op in graph.ops)
    yield Table.described(kinds.most_common(_KINDS), "kind|most frequent kinds", "ops")


def _topology(topology: Topology) -> Iterator[Block]:
    yield devices(topology)
    if topology.links:
        yield links(topology)
    yield topology.source


def _plan(plan: Plan) -> Iterator[Block]:
    held = plan.graph.constraints
    yield figures(
        {
            "graph": plan.graph.name,
            "ops": len(plan.graph.ops),
            "topology": plan.topology.name,
            "options": [f"{name} {value}" for name, value in plan.options.to_dict().items()],
            "ops_pinned_to": Counter(held.pins.values()),
            "ops_held_together": [len(ops) for ops in held.colocate],
            "makespan_s": plan.makespan_s,
            plan.objective.figure: plan.value_s,
            "as_the_plan_states": stated(plan),
            "method": plan.method,
        }
    )
    yield from _use(plan)


def _result(result: Result) -> Iterator[Block]:
    alone_s = result.single_device_s
    record = {**result.to_dict(), "best_single_device": FITS_NONE if alone_s is None else format_seconds(alone_s)}
    yield figures(record)
    yield from _use(result.plan)


def _use(plan: Plan) -> Iterator[Block]:
    """The use of the devices and, for a plan with a period, the resource loads in decreasing order."""
    yield device_use(plan)
    if not plan.objective.is_makespan:
        found = sorted(resource_loads(plan).items(), key=lambda entry: -entry[1])
        yield Table.described(found, "resource|device or link direction", "load_s|load|seconds")


def _split_result(found: "SplitResult") -> Iterator[Block]:
    yield from _result(found.split)
    yield figures({"ops_split": len(found.splits), "without_splits_s": found.whole.plan.makespan_s})


def _split_choice(found: "SplitChoice") -> Iterator[Block]:
    record = {"graph": found.graph.name, "ops": len(found.graph.ops), "ops_split": len(found.splits)}
    yield figures({**record, "without_splits_s": found.whole_s, "with_splits_s": found.split_s})


def _run(done: "Run") -> Iterator[Block]:
    from dlplacer.measure.run_report import shown_figures

    yield done.report.conclusion
    yield shown_figures(done.report)


def _explanation(found: "Explanation") -> Iterator[Block]:
    from dlplacer.report.explanation import REASONS

    record = {"makespan_s": found.path_ops_s + found.path_transfers_s + found.path_waits_s, **found.to_dict()}
    record["path_kinds_s"] = dict(list(found.path_kinds_s.items())[:_KINDS])
    longest = sorted(sorted(found.parts, key=lambda part: -part.time_s)[:_PATH], key=lambda part: part.begin_s)
    named = [
        (f"tensor {one.tensor}", f"to {one.target}") if isinstance(one, Transfer) else (one.op, one.device)
        for one in (part.step for part in longest)
    ]
    rows = [(*names, part.begin_s, part.time_s) for names, part in zip(named, longest, strict=True)]
    yield figures({**record, "limited_by": f"{found.limited_by}: {REASONS[found.limited_by]}"})
    yield from tables({"devices": record["devices"]})
    heads = ("step|longest on the critical path", "where", "start_s|start|seconds", "time_s|time|seconds")
    yield Table.described(rows, *heads)
    yield from tables({"longest_transfers": record["transfers"], "elsewhere": record.get("elsewhere")})
    if found.what_would_help is not None:
        yield from _what_would_help(found.what_would_help)


def _what_would_help(found: "WhatWouldHelp") -> Iterator[Block]:
    """Up to eight changes that shorten the step; the others are counted."""
    base_s = found.base.makespan_s
    if base_s < found.given_s:
        yield f"longer search alone: {format_seconds(base_s)}, not {format_seconds(found.given_s)}; gains refer to it"
    # The largest gains come first.
    count = sum((one.gain(base_s) or 0.0) >= _LEAST_GAIN for one in found.answers[:_CHANGES])
    shown = found.table.only("change", "makespan_s", "gain", "most_gain", "status")
    yield replace(shown, rows=shown.rows[:count])
    if count:
        yield "gain: how much shorter the step found with the change is; at most: the gain that its bound allows"
    untried = sum(one.status == "not tried" for one in found.answers)
    little = len(found.answers) - count - untried
    yield f"{little} other changes gain less than {100 * _LEAST_GAIN:g} %, or less than these"
    if untried:
        yield f"{untried} changes not tried for lack of time; --budget gives more time, --json lists all"


_VIEWS: dict[str, Callable[[Any], Iterator[Block]]] = {
    "Table": lambda value: iter((value,)),
    "OpGraph": _graph,
    "Topology": _topology,
    "Plan": _plan,
    "Result": _result,
    "SplitResult": _split_result,
    "SplitChoice": _split_choice,
    "Explanation": _explanation,
    "WhatWouldHelp": _what_would_help,
    "Run": _run,
    "Exported": lambda value: iter((value.text,)),
}
"""Name of a class → view. Keys are names, because loading all classes takes a second."""
