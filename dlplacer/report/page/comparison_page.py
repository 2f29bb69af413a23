"""The comparison of methods as one HTML page: a table of them, and the schedule of each."""

from typing import Any

from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_seconds
from dlplacer.planning.compare import Comparison
from dlplacer.report.page.page import page_table, schedule_data
from dlplacer.report.page.render import FigureTable, Page, render_page


def comparison_page(comparison: Comparison) -> str:
    """One HTML page about a comparison: the best method's schedule, and any other beside it at a click."""
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
