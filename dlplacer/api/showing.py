"""Pages of values, made by `show`, and views of values in notebooks: a headline, facts and small tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dlplacer.api.parameters import checked
from dlplacer.api.subjects import PlanLike, is_run, whole_plan_of
from dlplacer.api.views import blocks_of, subject_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import short_name
from dlplacer.core.table import Table
from dlplacer.files.text import write_text
from dlplacer.report.page.columns import visible

if TYPE_CHECKING:
    from dlplacer.planning.compare import Comparison
    from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
    from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan

_FRAME_PIXELS = 720
_PAGES = {"Comparison": "comparison_page", "HybridPlan": "hybrid_page", "PipelinePlan": "pipeline_page"}
"""Class → the function of `dlplacer.report.page.other_pages` that makes its page."""


@dataclass(frozen=True)
class HtmlPage:
    """A self-contained HTML page: notebooks show it, `save` writes it."""

    html: str
    title: str

    def __repr__(self) -> str:
        size = len(self.html) / 2**10
        return f"<HtmlPage {short_name(self.title)}: {size:.0f} KiB; .save(path) writes it>"

    def _repr_html_(self) -> str:
        # A frame keeps the page's styles and scripts apart from those of the notebook.
        return (
            f'<iframe srcdoc="{escape(self.html, quote=True)}" title="{escape(self.title)}" '
            f'style="width:100%;height:{_FRAME_PIXELS}px;border:1px solid #8886"></iframe>'
        )

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the page atomically; returns its path. Raises InputError if the file cannot be written."""
        write_text(path, self.html)
        return Path(path)


@checked
def show(
    subject: "PlanLike | Comparison | HybridPlan | PipelinePlan",
    path: str | PathLike[str] | None = None,
    *,
    against: PlanLike | None = None,
) -> HtmlPage:
    """A page on a plan (schedule, memory, modules, tables), or on a run, a comparison, a hybrid plan or a pipeline.

    Raises InputError if the subject is none of these or, with `against`, not a plan, or the file cannot be written.

    Examples
    --------
    >>> page = dp.show(dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft"))
    >>> page.title
    'InceptionV3 on dgx1-v100-2gpu: ... ms per step'
    >>> page.save("plan.html")  # doctest: +SKIP
    PosixPath('plan.html')
    """
    from dlplacer.report.page.page import html_page
    from dlplacer.report.summary import headline

    page = _other_page(subject)
    if page is None:
        plan = whole_plan_of(cast("PlanLike", subject), "subject")
        other = None if against is None else whole_plan_of(against, "against")
        title = headline(plan) if other is None else f"{headline(plan)}, against {headline(other)}"
        names = tuple(Path(each).stem if isinstance(each, (str, PathLike)) else "" for each in (subject, against))
        labels = (names[0], names[1]) if all(names) and names[0] != names[1] else ("A", "B")
        page = HtmlPage(html_page(plan, other, labels), title)
    elif against is not None:
        raise InputError("against is for two plans; give a plan or a result as subject, or leave it out")
    if path is not None:
        page.save(path)
    return page


def _other_page(subject: object) -> HtmlPage | None:
    """The page of a run, comparison, hybrid plan or pipeline; None for other values, which may be plans."""
    kind = type(subject).__name__
    if is_run(subject):
        from dlplacer.measure.run_report import page_of_run

        return HtmlPage(page_of_run(subject), f"{subject.predicted.graph.name or 'graph'}: predicted and measured")
    if kind not in _PAGES:
        return None
    from dlplacer.report.page import other_pages

    return HtmlPage(getattr(other_pages, _PAGES[kind])(subject), getattr(subject, "name", "") or kind)


_ROWS = 16
"""Largest number of rows shown of a table: with the headline, about a screen."""


def html(value: object) -> str:
    """The HTML fragment that a notebook shows for a value."""
    parts = [f"<div><b>{type(value).__name__}</b> {_text(subject_of(value))}</div>"]
    for block in blocks_of(value):
        if isinstance(block, Table):
            parts.append(_grid(block.cells, block.heads))
        elif isinstance(block, list):
            parts.append(_grid([fact for fact in block if fact[1]]))
        elif block:
            parts.append(f"<div>{_text(block, 240)}</div>")
    return f"<div>{''.join(parts)}</div>"


def _grid(rows: Sequence[Sequence[str]], heads: Sequence[str] | None = None) -> str:
    """An HTML table of text rows; rows beyond `_ROWS` are only counted."""
    import pandas

    if not rows:
        return ""
    cells = [[_text(cell, 60 if heads else 160) for cell in row] for row in rows[:_ROWS]]
    if len(rows) > _ROWS:
        cells.append([f"… {len(rows) - _ROWS} more", *("" for _ in cells[0][1:])])
    frame = pandas.DataFrame(cells, columns=None if heads is None else [_text(head) for head in heads])
    with pandas.option_context("display.max_colwidth", None):
        return str(frame.to_html(index=False, header=heads is not None, escape=False, border=0, justify="left"))


def _text(text: str, limit: int = 60) -> str:
    """A text escaped for HTML: control and direction characters become codes, and a long text loses its middle."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[limit // 2 + 1 - limit :]}"
    return escape(visible(text))
