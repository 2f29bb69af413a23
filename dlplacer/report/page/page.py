"""A plan as one HTML page; two plans side by side; a run beside its prediction; the plans of several methods."""

from collections.abc import Sequence
from typing import Any

from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.report.page.columns.graph_columns import graph_columns, same_graph
from dlplacer.report.page.columns.page_clock import PageClock
from dlplacer.report.page.columns.schedule_columns import schedule_columns
from dlplacer.report.page.columns.texts import Texts
from dlplacer.report.page.figures import assumption_table, highlights, origin_table, result_table
from dlplacer.report.page.render import FigureTable, Page, render_page
from dlplacer.report.page.summary import headline

NamedPlan = tuple[str, Plan]

_TOP = 4
_MOST_NAMED = 4


def html_page(plan: Plan, against: Plan | None = None, names: tuple[str, str] = ("A", "B")) -> str:
    """One HTML page about a plan that needs nothing else: schedule, memory, modules and tables to walk through.

    Parameters
    ----------
    against
        A second plan, drawn on the same axis, device by device.
    names
        What the two are called.
    """
    if against is None:
        figures = [result_table([("", plan)]), assumption_table([("", plan)]), origin_table(plan)]
        return render_page(Page(headline(plan), highlights(plan), figures, schedule_data([("plan", plan)])))
    both = [(names[0], plan), (names[1], against)]
    title = f"{names[0]} against {names[1]}: {' and '.join(dict.fromkeys(map(_subject, (plan, against))))}"
    figures = [result_table(both), assumption_table(both), *map(origin_table, (plan, against))]
    top = [(name, f"{format_seconds(each.makespan_s)}, gap {100 * each.gap:.3g} %") for name, each in both]
    if plan.makespan_s:
        top.append((f"{names[1]} ÷ {names[0]}", f"{against.makespan_s / plan.makespan_s:.3f}"))
    return render_page(Page(title, top, figures, schedule_data(both, (0, 1))))


def run_page(predicted: Plan, measured: Plan, figures: Sequence[tuple[str, str]], conclusion: str = "") -> str:
    """The page of a run: its predicted and a recorded step on one axis, device by device.

    Parameters
    ----------
    measured
        As `dlplacer.measure` records it, on the devices of the predicted plan.
    figures
        Name and value of what the run found; the first few stand at the top.
    conclusion
        What they say, in a sentence.
    """
    both = [("predicted", predicted), ("measured", measured)]
    devices = [device.id for device in predicted.topology.devices]
    where = ", ".join(devices) if len(devices) <= _MOST_NAMED else f"{len(devices)} devices"
    title = f"{predicted.graph.name or 'graph'}: predicted and measured on {where}"
    tables = [FigureTable("Run", figures), assumption_table([("", predicted)]), origin_table(predicted)]
    data = schedule_data(both, (0, 1), is_run=True)
    return render_page(Page(title, figures[:_TOP], tables, data, conclusion))


def schedule_data(
    plans: Sequence[NamedPlan], shown: Sequence[int] = (0,), is_run: bool = False, **more: Any
) -> dict[str, Any]:
    """The data of a page with schedules: one clock and one table of texts for all, graphs once each.

    Parameters
    ----------
    shown
        Positions of the schedules that the page shows at first.
    is_run
        Whether they are steps of a run.
    more
        What else the script reads: ``tables``, ``colorBy``.
    """
    texts, clock = Texts(), PageClock(max(_span_s(plan) for _, plan in plans))
    graphs: list[Plan] = []
    numbers = []
    for _, plan in plans:
        known = (number for number, other in enumerate(graphs) if same_graph(plan.graph, other.graph))
        number = next(known, len(graphs))
        if number == len(graphs):
            graphs.append(plan)
        numbers.append(number)
    return {
        "unitS": clock.unit_s,
        "shown": list(shown),
        "graphs": [graph_columns(plan, texts) for plan in graphs],
        "schedules": [
            schedule_columns(plan, name, number, clock, texts, is_run)
            for (name, plan), number in zip(plans, numbers, strict=True)
        ],
        **more,
        # Last: the columns fill it.
        "texts": texts.table,
    }


def _subject(plan: Plan) -> str:
    return f"{plan.graph.name or 'graph'} on {plan.topology.name or f'{len(plan.topology.devices)} devices'}"


def _span_s(plan: Plan) -> float:
    return max(plan.makespan_s, plan.lower_bound_s, *(entry.end_s for entry in plan.ops))
