"""A hybrid plan as one HTML page: speedup over devices, and the best strategy for every number of them."""

from collections.abc import Sequence
from typing import Any

from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_seconds
from dlplacer.planning.hybrid.hybrid_plan import BestOfDevices, HybridPlan, Strategy
from dlplacer.report.page.page import page_table
from dlplacer.report.page.render import FigureTable, Page, render_page

_UNIT_S = 1e-9
_MOST_POINTS = 256
_BEST = "best, idle devices allowed"


def hybrid_page(plan: HybridPlan, notes: Sequence[tuple[str, str]] = ()) -> str:
    """One HTML page about a hybrid plan.

    Parameters
    ----------
    notes
        Name and text of what else is to be known: fits, warnings.
    """
    best = plan.budgets[-1].best
    top = [
        ("devices", str(len(plan.budgets))),
        *([("best", best.label), ("speedup", _speedup(plan, best))] if best is not None else []),
        ("hybrid first wins", "nowhere" if plan.first_win is None else f"at {plan.first_win} devices"),
    ]
    crossovers = [(f"from {each.devices}", f"{each.workers} × {each.degree}") for each in plan.crossovers]
    tables = [FigureTable("Best strategy", crossovers)]
    if best is not None:
        tables.insert(0, FigureTable(f"On {len(plan.budgets)} devices", _strategy_rows(plan, best)))
    if notes:
        tables.append(FigureTable("Notes", notes))
    data = {
        "unitS": _UNIT_S,
        "chart": _chart(plan),
        "tables": [page_table("Budgets", plan.table, _UNIT_S, {"best": 260})],
    }
    return render_page(Page(plan.name or "Hybrid plan", top, tables, data))


def _speedup(plan: HybridPlan, best: Strategy) -> str:
    faster = plan.speedup(best)
    return FITS_NONE if faster is None else f"{faster:.4g}×"


def _strategy_rows(plan: HybridPlan, best: Strategy) -> list[tuple[str, str]]:
    step = best.step
    rows = [
        ("workers", f"{best.workers} of {best.degree} {'device' if best.degree == 1 else 'devices'}"),
        ("model-parallel speedup", f"{best.split.speedup:.3f}×, {best.split.method}"),
        ("codec", step.codec),
        ("transport", f"{step.transport}{f', {step.algorithm}' if step.algorithm else ''}"),
        ("messages", str(step.groups)),
        ("step", format_seconds(step.step_s)),
        ("of which exchange", format_seconds(step.exposed_s)),
        ("epochs", f"{best.epochs:.4g}"),
    ]
    if plan.mini_batches is not None:
        rows.append(("time to converge", format_seconds(best.time_s(plan.mini_batches))))
    return rows


def _chart(plan: HybridPlan) -> dict[str, Any]:
    budgets = _thinned(plan)
    degrees = sorted({degree for each in budgets for degree in each.by_degree if degree > 1})
    lines = {"data parallelism": [(each.devices, each.data_parallel) for each in budgets]}
    for degree in degrees:
        lines[f"hybrid, {degree} devices per worker"] = [(each.devices, each.by_degree.get(degree)) for each in budgets]
    lines[_BEST] = [(each.devices, each.best) for each in budgets]
    drawn = [
        {
            "name": name,
            "dashed": name == _BEST,
            "points": [(count, plan.relative(found), found.label) for count, found in points if found is not None],
        }
        for name, points in lines.items()
    ]
    marks = [] if plan.first_win is None else [{"at": plan.first_win, "text": f"hybrid wins from {plan.first_win}"}]
    return {
        "x": "devices",
        "y": plan.chart_label,
        "series": [line for line in drawn if line["points"]],
        "marks": marks,
    }


def _thinned(plan: HybridPlan) -> list[BestOfDevices]:
    """All budgets if they are few; else so many as a logarithmic axis can tell apart."""
    count = len(plan.budgets)
    if count <= _MOST_POINTS:
        return list(plan.budgets)
    chosen = {round(count ** (position / (_MOST_POINTS - 1))) for position in range(_MOST_POINTS)}
    return [plan.at(devices) for devices in sorted(chosen | {count, *([plan.first_win] if plan.first_win else [])})]
