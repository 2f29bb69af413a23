"""A plan as one HTML page."""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape

from dlplacer.core.options import ASSUMPTIONS
from dlplacer.core.plan import Plan, Transfer
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.report.critical_path import critical_path
from dlplacer.report.link_use import link_uses
from dlplacer.report.page.summary import busy_s, headline, serial_s, speedup
from dlplacer.report.plot.pictures import Picture, pictures_of
from dlplacer.report.plot.save import render

Row = tuple[str, ...]

_LONGEST_OPS = 20
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #22262b; margin: 2rem auto; max-width: 100rem; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; }
thead th { border-bottom: 1px solid #8a8f98; } td { border-bottom: 1px solid #eef0f3; }
.number { text-align: right; font-variant-numeric: tabular-nums; } img { width: 100%; height: auto; }
.side { display: flex; flex-wrap: wrap; gap: 0 5rem; } td { overflow-wrap: anywhere; }
"""


class _Number(str):
    """A figure, set flush right."""

    __slots__ = ()


def html_page(plan: Plan) -> str:
    """One HTML page about a plan that needs nothing else: figures, pictures, assumptions and the longest ops."""
    title = escape(headline(plan))
    assumptions = [(name, value, ASSUMPTIONS[name].meaning[value]) for name, value in plan.options.to_dict().items()]
    op_head = ("op", "kind", "module", "phase", "device", "start", "time", "of all")
    parts = [
        f"<h1>{title}</h1>",
        '<div class="side">',
        _section("Result", _table((), _result(plan))),
        "<div>",
        _section(
            "Devices", _table(("device", "type", "ops", "busy", "of the step", "peak", "capacity"), _devices(plan))
        ),
        _section("Links", _table(("link", "transfers", "bytes", "in use", "of the step"), _links(plan))),
        _section("Assumptions", _table((), assumptions)),
        "</div>",
        "</div>",
        *(_picture_section(plan, picture) for picture in pictures_of("plan") if picture.title),
        _section(f"The {_LONGEST_OPS} longest ops", _table(op_head, _longest(plan))),
    ]
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{viewport}<title>{title}</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _result(plan: Plan) -> list[tuple[str, str]]:
    faster = speedup(plan)
    return [
        ("status", plan.status),
        ("step time", format_seconds(plan.makespan_s)),
        ("lower bound", format_seconds(plan.lower_bound_s)),
        ("optimality gap", f"{100 * plan.gap:.3g} %"),
        ("rounding", format_seconds(plan.rounding_s)),
        ("serial time", format_seconds(serial_s(plan))),
        ("speedup", "none: the plan takes no time" if faster is None else f"{faster:.4g}×"),
        ("method", f"{plan.method}, {format_seconds(plan.solve_s)}"),
        ("critical path", _critical(plan)),
        ("graph", f"{plan.graph.name or 'unnamed'}: {len(plan.graph.ops)} ops, {len(plan.graph.edges)} edges"),
        ("machine", f"{plan.topology.name or 'unnamed'}: {len(plan.topology.devices)} devices"),
        *((name, str(value)) for name, value in plan.provenance.items()),
    ]


def _critical(plan: Plan) -> str:
    steps = critical_path(plan)
    moving_s = sum(step.end_s - step.start_s for step in steps if isinstance(step, Transfer))
    count = sum(isinstance(step, Transfer) for step in steps)
    return f"{len(steps) - count} ops, {count} transfers that take {format_seconds(moving_s)}"


def _devices(plan: Plan) -> list[Row]:
    busy = busy_s(plan)
    peak = {device: format_bytes(memory.peak_bytes) for device, memory in plan.memory.items()}
    return [
        (
            device.id,
            device.type,
            _Number(len(plan.order[device.id])),
            _Number(format_seconds(busy[device.id])),
            _share(busy[device.id], plan.makespan_s),
            _Number(peak.get(device.id, "unknown")),
            _Number("unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes)),
        )
        for device in plan.topology.devices
    ]


def _links(plan: Plan) -> list[Row]:
    rows: list[Row] = []
    for (source, target), uses in link_uses(plan).items():
        moved = sum(use.transfer.bytes for use in uses)
        used_s = sum(use.end_s - use.start_s for use in uses)
        figures = (_Number(len(uses)), _Number(format_bytes(moved)), _Number(format_seconds(used_s)))
        rows.append((f"{source} → {target}", *figures, _share(used_s, plan.makespan_s)))
    return rows


def _longest(plan: Plan) -> list[Row]:
    total_s = sum(entry.end_s - entry.start_s for entry in plan.ops)
    longest = sorted(plan.ops, key=lambda entry: entry.start_s - entry.end_s)[:_LONGEST_OPS]
    rows: list[Row] = []
    for entry in longest:
        op, time_s = plan.graph.op(entry.op), entry.end_s - entry.start_s
        names = (op.id, op.kind, op.module or "", op.phase or "", entry.device)
        figures = (_Number(format_seconds(entry.start_s)), _Number(format_seconds(time_s)), _share(time_s, total_s))
        rows.append((*names, *figures))
    return rows


def _share(part: float, whole: float) -> str:
    return _Number(f"{100 * part / whole:.1f} %" if whole else "")


def _picture_section(plan: Plan, picture: Picture) -> str:
    data, name = b64encode(render(picture.plot, plan, "svg")).decode("ascii"), picture.title
    image = f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}">'
    return _section(name, f"<p>{picture.caption}</p>{image}")


def _section(name: str, content: str) -> str:
    return f"<section><h2>{escape(name)}</h2>{content}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    shown = list(rows)
    if not shown:
        return "<p>none</p>"
    body = "".join(f"<tr>{''.join(f'<td{_class(cell)}>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in shown)
    top = "".join(f"<th{_class(cell)}>{escape(name)}</th>" for name, cell in zip(head, shown[0], strict=False))
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _class(cell: str) -> str:
    return ' class="number"' if isinstance(cell, _Number) else ""
