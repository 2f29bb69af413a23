"""The figures at the side of a page, readable without its script."""

from collections.abc import Sequence

from dlplacer.core.options import ASSUMPTIONS
from dlplacer.core.plan import Plan, Transfer
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.critical_path import critical_parts
from dlplacer.report.page.render import FigureTable
from dlplacer.report.page.summary import speedup_text

Row = tuple[str, ...]


def highlights(plan: Plan) -> list[tuple[str, str]]:
    """The few figures by which a plan is judged first."""
    faster = speedup_text(plan)
    return [
        ("bound", format_seconds(plan.lower_bound_s)),
        ("gap", f"{100 * plan.gap:.3g} %"),
        *([("speedup", faster)] if faster is not None else []),
        ("status", plan.status),
    ]


def result_table(plans: Sequence[tuple[str, Plan]]) -> FigureTable:
    """Time, bound, gap, speedup and what made a plan; a column for each."""
    columns = [_result(plan) for _, plan in plans]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [(name, *(column.get(name, "–") for column in columns)) for name in names]
    return FigureTable("Result", rows, [name for name, _ in plans] if len(plans) > 1 else ())


def assumption_table(plans: Sequence[tuple[str, Plan]]) -> FigureTable:
    """Every option of the problem with what is assumed by it; where plans differ, a column for each."""
    chosen = list(dict.fromkeys(plan.options for _, plan in plans))
    heads = [name for name, _ in plans] if len(chosen) > 1 else ()
    columns = [options.to_dict() for options in (chosen if len(chosen) == 1 else [plan.options for _, plan in plans])]
    rows = [
        (name, *(f"{column[name]}: {assumption.meaning[column[name]]}" for column in columns))
        for name, assumption in ASSUMPTIONS.items()
    ]
    return FigureTable("Assumptions", rows, heads)


def origin_table(plan: Plan) -> FigureTable:
    """Graph, machine and provenance of a plan."""
    rows: list[Row] = [
        ("graph", f"{plan.graph.name or 'unnamed'}: {len(plan.graph.ops)} ops, {len(plan.graph.edges)} edges"),
        ("machine", f"{plan.topology.name or 'unnamed'}: {len(plan.topology.devices)} devices"),
        *((name, str(value)) for name, value in plan.provenance.items()),
    ]
    return FigureTable("Origin", rows)


def _result(plan: Plan) -> dict[str, str]:
    return {
        "status": plan.status,
        "step time": format_seconds(plan.makespan_s),
        "lower bound": format_seconds(plan.lower_bound_s),
        "optimality gap": f"{100 * plan.gap:.3g} %",
        "rounding": format_seconds(plan.rounding_s),
        "speedup": speedup_text(plan) or "none: the plan takes no time",
        "critical path": _critical(plan),
        "transfers": f"{len(plan.transfers)}, {format_bytes(sum(sent.bytes for sent in plan.transfers))}",
        "method": f"{plan.method}, {format_seconds(plan.solve_s)}",
    }


def _critical(plan: Plan) -> str:
    parts = critical_parts(plan)
    moving = [part.time_s for part in parts if isinstance(part.step, Transfer)]
    return f"{len(parts) - len(moving)} ops, {len(moving)} transfers that take {format_seconds(sum(moving))}"
