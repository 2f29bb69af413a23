"""Comparisons, hybrid plans and pipelines as one HTML page each."""

from collections.abc import Iterator, Set
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.core.units import format_seconds
from dlplacer.planning.compare import Comparison
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.schedules import Action
from dlplacer.planning.result import FITS_NONE
from dlplacer.planning.tables import figures
from dlplacer.report.page.page import FigureTable, Page, page_table, render_page, schedule_data


def comparison_page(comparison: Comparison) -> str:
    """One HTML page about a comparison: the best method's schedule and, on a click, other schedules beside it."""
    plans = [(row.method, row.plan) for row in comparison.rows if row.plan is not None]
    best = comparison.rows[0]
    single_s = comparison.single_device_s
    top = [
        ("best", best.method if best.makespan_s is None else f"{best.method}, {format_seconds(best.makespan_s)}"),
        ("bound", format_seconds(comparison.lower_bound_s)),
        ("best single device", FITS_NONE if single_s is None else format_seconds(single_s)),
    ]
    title = f"{comparison.name}: methods compared" if comparison.name else "Methods compared"
    data: dict[str, Any] = schedule_data(plans) if plans else {"unitS": 1e-9}
    shown = comparison.table.only("method", "status", "makespan_s", "speedup", "gap", "solve_s")
    methods, number = page_table("Methods", shown, data["unitS"], {"status": 110}), iter(range(len(plans)))
    methods["schedules"] = [None if row.plan is None else next(number) for row in comparison.rows]
    data["tables"] = [methods]
    return render_page(Page(title, top, [FigureTable("Comparison", top)], data))


_UNIT_S = 1e-9
_MOST_POINTS = 256
_BEST = "best, idle devices allowed"


def hybrid_page(plan: HybridPlan) -> str:
    """One HTML page about a hybrid plan."""
    best = plan.budgets[-1].best
    faster = None if best is None else plan.speedup(best)
    top = [
        ("devices", str(len(plan.budgets))),
        *([] if best is None else [("best", best.label), ("speedup", f"{faster:.4g}×" if faster else FITS_NONE)]),
        ("hybrid first wins", "nowhere" if plan.first_win is None else f"at {plan.first_win} devices"),
    ]
    data = {
        "unitS": _UNIT_S,
        "chart": _chart(plan),
        "tables": [page_table("Budgets", plan.table, _UNIT_S, {"best": 260})],
    }
    return render_page(Page(plan.name or "Hybrid plan", top, [FigureTable("Plan", figures(plan.to_dict()))], data))


def _chart(plan: HybridPlan) -> dict[str, Any]:
    # Many budgets are thinned out to evenly spaced ones and those that the page names.
    step = -(-len(plan.budgets) // _MOST_POINTS)
    named = (plan.first_win, len(plan.budgets))
    budgets = [each for each in plan.budgets if each.devices % step == 0 or each.devices in named]
    lines = plan.lines(budgets)
    lines[_BEST] = [(each.devices, each.best) for each in budgets]
    series = []
    for name, points in lines.items():
        known = [(count, plan.relative(found), found.label) for count, found in points if found is not None]
        series += [{"name": name, "dashed": name == _BEST, "points": known}] if known else []
    marks = [] if plan.first_win is None else [{"at": plan.first_win, "text": f"hybrid wins from {plan.first_win}"}]
    return {"x": "devices", "y": plan.chart_label, "series": series, "marks": marks}


_KINDS = {"F": "forward", "B": "backward", "I": "backward for the inputs", "W": "backward for the weights"}
_COLORS = (("module", "micro-batch"), ("phase", "phase"), ("kind", "pass"), ("device", "device"))


def pipeline_page(pipeline: PipelinePlan) -> str:
    """One HTML page about a pipeline: a row per device, passes coloured by micro-batch, transfers between stages."""
    counts = f"{len(pipeline.stages)} stages, {pipeline.micro_batches} micro-batches"
    title = f"{pipeline.name}: {pipeline.schedule}, {counts}"
    speedup = FITS_NONE if pipeline.speedup is None else f"{pipeline.speedup:.4g}× over the best single device"
    bubble = f"{100 * pipeline.timeline.bubble:.1f} %"
    top = [("step", format_seconds(pipeline.step_s)), ("bubble", bubble), ("speedup", speedup)]
    data = schedule_data([("pipeline", passes_as_plan(pipeline))], colorBy=_COLORS)
    data["tables"] = [page_table("Stages", pipeline.table, data["unitS"], {"last_op": 240})]
    return render_page(Page(title, top, [FigureTable("Pipeline", figures(pipeline.to_dict()))], data))


def passes_as_plan(pipeline: PipelinePlan) -> Plan:
    """The passes of a pipeline as the ops of a plan, for views of plans; `check` does not apply to such a plan.

    Ops are named like actions (``2F0``) and belong to the module of their micro-batch and stage; a transfer uses one
    link, at the rate that it attains.
    """
    timeline, devices = pipeline.timeline, pipeline.devices
    spans = {span.action: span for spans in timeline.ranks for span in spans}
    entries = [
        ScheduledOp(str(span.action), devices[rank], span.begin_s, span.end_s)
        for rank, spans in enumerate(timeline.ranks)
        for span in spans
    ]
    ops = [_pass(action, span.end_s - span.begin_s) for action, span in spans.items()]
    for rank, update_s in enumerate(timeline.update_s):
        if update_s:
            begin_s = max((span.end_s for span in timeline.ranks[rank]), default=0.0)
            ops.append(Op(f"update of {devices[rank]}", "optimizer", update_s, phase="optimizer"))
            entries.append(ScheduledOp(ops[-1].id, devices[rank], begin_s, begin_s + update_s))
    edges = [
        Edge(str(action), str(reader), size, tensor=f"{action} → {reader}")
        for action in spans
        for reader, size in _readers(pipeline, action, spans.keys())
    ]
    transfers = tuple(_transfers(pipeline, spans.keys()))
    rates = {sent.segments[0].route[0]: max(1, sent.bytes) / ((sent.end_s - sent.start_s) or 1.0) for sent in transfers}
    links = {frozenset(hop): Link(*hop, rate) for hop, rate in rates.items()}
    return Plan(
        graph=OpGraph(tuple(ops), tuple(edges), name=pipeline.name),
        topology=Topology(tuple(Device(name) for name in devices), links=tuple(links.values())),
        options=Options(step="joint"),
        status="feasible",
        makespan_s=pipeline.step_s,
        lower_bound_s=0.0,
        gap=0.0,
        rounding_s=0.0,
        method=pipeline.schedule,
        solve_s=0.0,
        ops=tuple(sorted(entries, key=lambda entry: entry.start_s)),
        transfers=transfers,
    )


def _pass(action: Action, time_s: float) -> Op:
    phase = "forward" if action.kind == "F" else "backward"
    module = f"micro-batch {action.micro_batch}.stage {action.stage}"
    return Op(str(action), _KINDS[action.kind], time_s, phase=phase, module=module)


def _readers(pipeline: PipelinePlan, action: Action, known: Set[Action]) -> Iterator[tuple[Action, int]]:
    """The readers of a pass's results, and the bytes sent to each if it is on another device.

    Activations go to the next stage and gradients back; tensors kept for a stage's own backward pass are never sent.
    """
    stage, part = action.stage, action.micro_batch
    readers = {"F": [(stage + 1, "F", pipeline.stages[stage].sends_bytes), (stage, "B", 0), (stage, "I", 0)], "W": []}
    back = [(stage - 1, kind, pipeline.stages[stage - 1].returns_bytes) for kind in "BI" if stage > 0]
    for there, kind, size in readers.get(action.kind, [*back, (stage, "W", 0)]):
        reader = Action(there, kind, part)
        if reader in known:
            yield reader, size


def _transfers(pipeline: PipelinePlan, known: Set[Action]) -> Iterator[Transfer]:
    for span in pipeline.timeline.transfers:
        for reader, size in _readers(pipeline, span.action, known):
            if reader.stage != span.action.stage:
                hop = pipeline.stages[span.action.stage].device, pipeline.stages[reader.stage].device
                segment = TransferSegment((hop,), span.begin_s, span.end_s)
                yield Transfer(f"{span.action} → {reader}", str(span.action), hop[1], size, (segment,))
