"""Values as notebooks show them: a headline, a few figures, and a small table; a plan with its devices over time.

Self-contained HTML of a few kilobytes, without scripts; colours follow the notebook's theme.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dlplacer.api.strip import strip
from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_bytes, format_bytes_per_s, format_seconds
from dlplacer.report.page.columns.texts import visible

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.plan import Plan
    from dlplacer.core.result import Result
    from dlplacer.core.topology import Topology
    from dlplacer.measure.run_report import Run
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
    from dlplacer.planning.what_if.what_would_help import WhatWouldHelp
    from dlplacer.report.explanation import Explanation

Row = Sequence[str]

_ROWS = 16
"""Rows of a table that are shown: about a screen, with the headline."""
_LONGEST_NAME = 60
_CELL = "padding:.15em 1em .15em 0;border:0;text-align:"


def html(value: object) -> str:
    """The fragment that a notebook shows for a value that has one."""
    kinds = (kind.__name__ for kind in type(value).__mro__)
    card: Callable[[Any], str] = next(_CARDS[name] for name in kinds if name in _CARDS)
    return f'<div style="line-height:1.45;overflow-x:auto">{card(value)}</div>'


def _graph(graph: "OpGraph") -> str:
    kinds = Counter(op.kind for op in graph.ops)
    phases = Counter(op.phase or "no phase" for op in graph.ops)
    weights = sum(op.weight_bytes for op in graph.ops)
    times = sorted({kind for op in graph.ops if isinstance(op.time_s, dict) for kind in op.time_s})
    facts = [
        ("ops", f"{len(graph.ops)}: {', '.join(f'{count} {phase}' for phase, count in phases.items())}"),
        ("edges", str(len(graph.edges))),
        ("weights", format_bytes(weights)),
        ("times for", ", ".join(times) or ("all types" if any(op.time_s for op in graph.ops) else "none: roofline")),
        ("source", graph.source),
    ]
    rows = [(kind, str(count)) for kind, count in kinds.most_common(_ROWS // 2)]
    return (
        _headline("OpGraph", graph.name or "unnamed")
        + _pairs(facts)
        + _table(("most frequent kinds", "ops"), rows, len(kinds))
    )


def _topology(topology: "Topology") -> str:
    devices = [
        (
            device.id,
            device.type,
            "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes),
        )
        for device in topology.devices
    ]
    links = [
        (
            f"{link.source} – {link.target}",
            f"{f'{link.count} × ' if link.count > 1 else ''}{format_bytes_per_s(link.bytes_per_s)}",
            format_seconds(link.latency_s),
        )
        for link in topology.links
    ]
    shown = _table(("device", "type", "memory"), devices, len(devices), names=2)
    shown += _table(("link", "rate", "latency"), links, len(links))
    return _headline("Topology", topology.name or "unnamed") + _beside(shown) + _note(topology.source)


def _plan(plan: "Plan") -> str:
    return _headline("Plan", _subject(plan)) + _pairs(_figures(plan)) + strip(plan) + _devices(plan)


def _result(result: "Result") -> str:
    plan, faster = result.plan, result.speedup
    single = FITS_NONE if result.single_device_s is None else format_seconds(result.single_device_s)
    gain = [("best single device", single if faster is None else f"{single}; speedup {faster:.3f}x")]
    return _headline("Result", _subject(plan)) + _pairs(_figures(plan) + gain) + strip(plan) + _devices(plan)


def _comparison(comparison: "Comparison") -> str:
    rows = []
    for row in comparison.rows:
        speedup, gap = comparison.speedup(row), comparison.gap(row)
        rows.append(
            (
                row.method,
                row.status,
                "-" if row.makespan_s is None else format_seconds(row.makespan_s),
                "-" if speedup is None else f"{speedup:.3f}x",
                "-" if gap is None else f"{100 * gap:.2f} %",
                format_seconds(row.solve_s),
            )
        )
    heads = ("method", "status", "step time", "speedup", "gap", "solved in")
    bound = f"lower bound {format_seconds(comparison.lower_bound_s)}"
    return _headline("Comparison", comparison.name) + _table(heads, rows, len(rows), names=2) + _note(bound)


def _run(done: "Run") -> str:
    from dlplacer.measure.run_report import shown_figures

    report = done.report
    devices = [
        (use.device, format_seconds(use.predicted_busy_s), format_seconds(use.measured_busy_s)) for use in report.use
    ]
    shown = _table(("device", "busy, predicted", "busy, measured"), devices, len(devices))
    steps = f"{report.conclusion} {report.steps} steps on {', '.join(report.devices)}".strip()
    return (
        _headline("Run", _subject(done.predicted))
        + _pairs(shown_figures(report))
        + _beside(shown)
        + strip(done.measured)
        + _note(steps)
    )


def _pipeline(plan: "PipelinePlan") -> str:
    rows = [
        (
            str(number),
            stage.device,
            format_seconds(stage.forward_s),
            format_seconds(stage.backward_s),
            format_bytes(stage.memory_bytes),
            format_bytes(stage.sends_bytes),
        )
        for number, stage in enumerate(plan.stages)
    ]
    heads = ("stage", "device", "forward", "backward", "memory", "sends")
    facts = [
        ("schedule", f"{plan.schedule}, {plan.micro_batches} micro-batches"),
        ("step time", format_seconds(plan.step_s)),
        ("bubble", f"{100 * plan.timeline.bubble:.1f} %"),
        ("speedup", FITS_NONE if plan.speedup is None else f"{plan.speedup:.3f}x over the best single device"),
    ]
    return _headline("Pipeline", plan.name) + _pairs(facts) + _table(heads, rows, len(rows), names=2)


def _hybrid(plan: "HybridPlan") -> str:
    count = len(plan.budgets)
    powers = {1 << power for power in range(count.bit_length())}
    chosen = [each for each in plan.budgets if count <= _ROWS or each.devices in {*powers, count, plan.first_win}]
    rows = [
        (
            str(each.devices),
            "-" if each.best is None else each.best.label,
            _times(plan.speedup(each.best)),
            _times(plan.speedup(each.best_data_parallel)),
            _times(each.against_same_devices),
        )
        for each in chosen
    ]
    heads = ("devices", "best strategy", "speedup", "data parallel", "hybrid over it")
    win = "hybrid wins nowhere" if plan.first_win is None else f"hybrid first wins at {plan.first_win} devices"
    return _headline("Hybrid", plan.name) + _table(heads, rows, len(rows), names=2) + _note(win)


def _explanation(found: "Explanation") -> str:
    from dlplacer.report.explanation import REASONS

    facts = [
        ("bounds", ", ".join(f"{name} {format_seconds(limit_s)}" for name, limit_s in found.limits_s.items())),
        ("bound as the plan states", f"{format_seconds(found.stated_bound_s)}, not proved again here"),
        ("limited by", f"{found.limited_by}: {REASONS[found.limited_by]}"),
        (
            "critical path",
            f"{len(found.path)} steps: ops {format_seconds(found.path_ops_s)}, transfers "
            f"{format_seconds(found.path_transfers_s)}, waiting {format_seconds(found.path_waits_s)}",
        ),
    ]
    rows = [
        (share.device, str(share.ops), *map(format_seconds, (share.busy_s, share.idle_s, share.on_path_s)))
        for share in found.devices
    ]
    heads = ("device", "ops", "busy", "idle", "on the critical path")
    return _headline("Explanation", "") + _pairs(facts) + _table(heads, rows, len(rows))


def _what_would_help(found: "WhatWouldHelp") -> str:
    base_s = found.base.makespan_s
    rows = [
        (
            answer.text,
            "-" if answer.makespan_s is None else format_seconds(answer.makespan_s),
            _percent(answer.gain(base_s)),
            _percent(answer.most(base_s)),
            answer.status,
        )
        for answer in found.answers
    ]
    table = _table(("change", "step", "gain", "at most", ""), rows, len(rows))
    return _headline("What would help", _subject(found.base)) + table


_CARDS: dict[str, Callable[[Any], str]] = {
    "OpGraph": _graph,
    "Topology": _topology,
    "Plan": _plan,
    "Result": _result,
    "Comparison": _comparison,
    "Run": _run,
    "PipelinePlan": _pipeline,
    "HybridPlan": _hybrid,
    "Explanation": _explanation,
    "WhatWouldHelp": _what_would_help,
}
"""Class → its card; by name, as loading all rooms to show a graph would take a second."""


def _figures(plan: "Plan") -> list[tuple[str, str]]:
    return [
        ("step time", f"{format_seconds(plan.makespan_s)} ({plan.status}, gap {100 * plan.gap:.2f} %)"),
        ("lower bound", format_seconds(plan.lower_bound_s)),
        ("method", f"{plan.method}, {plan.solve_s:.1f} s"),
    ]


def _devices(plan: "Plan") -> str:
    rows = []
    for device in plan.topology.devices:
        mine = [entry for entry in plan.ops if entry.device == device.id]
        busy_s = sum(entry.end_s - entry.start_s for entry in mine)
        memory = plan.memory.get(device.id)
        share = f"{100 * busy_s / plan.makespan_s:.0f} %" if plan.makespan_s else "-"
        capacity = "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        peak = "-" if memory is None else format_bytes(memory.peak_bytes)
        rows.append((device.id, device.type, str(len(mine)), format_seconds(busy_s), share, peak, capacity))
    heads = ("device", "type", "ops", "busy", "of the step", "peak memory", "capacity")
    moved = sum(transfer.bytes for transfer in plan.transfers)
    sent = f"{len(plan.transfers)} transfers, {format_bytes(moved)}"
    return _table(heads, rows, len(rows), names=2) + _note(sent)


def _subject(plan: "Plan") -> str:
    return f"{plan.graph.name or 'graph'} on {plan.topology.name or f'{len(plan.topology.devices)} devices'}"


def _headline(kind: str, name: str) -> str:
    return f'<div style="margin:.2em 0 .4em"><b>{kind}</b> {_text(name)}</div>'


def _note(text: str) -> str:
    return f'<div style="opacity:.7;margin:.3em 0">{_text(text, 240)}</div>' if text else ""


def _beside(tables: str) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 3em;align-items:flex-start">{tables}</div>'


def _pairs(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr style="background:none"><td style="{_CELL}left;opacity:.7">{_text(name)}</td>'
        f'<td style="{_CELL}left">{_text(value, 160)}</td></tr>'
        for name, value in facts
        if value
    )
    return f'<table style="border-collapse:collapse;margin:.2em 0;border:0"><tbody>{rows}</tbody></table>'


def _table(heads: Row, rows: Sequence[Row], count: int, names: int = 1) -> str:
    """A table whose first columns are names, set flush left; further rows than a screen holds are counted."""
    if not rows:
        return ""
    sides = ["left" if place < names else "right" for place in range(len(heads))]
    top = "".join(f'<th style="{_CELL}{side}">{_text(name)}</th>' for name, side in zip(heads, sides, strict=True))
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}{side}">{_text(cell)}</td>' for cell, side in zip(row, sides, strict=True))
        + "</tr>"
        for row in rows[:_ROWS]
    )
    hidden = count - len(rows[:_ROWS])
    more = f'<tr><td colspan="{len(heads)}" style="{_CELL}left;opacity:.7">… {hidden} more</td></tr>' if hidden else ""
    head = f'<thead><tr style="border-bottom:1px solid #8888">{top}</tr></thead>'
    style = "border-collapse:collapse;margin:.4em 0;border:0;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{head}<tbody>{body}{more}</tbody></table>'


def _text(text: str, limit: int = _LONGEST_NAME) -> str:
    """A name as HTML may show it: escaped, control and direction characters as codes, a long one without its middle."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[limit // 2 + 1 - limit :]}"
    return escape(visible(text))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
