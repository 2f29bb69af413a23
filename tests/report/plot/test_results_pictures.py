"""Pictures of methods compared, of a pipeline's schedule, and of speedups over devices."""

import pytest
from matplotlib.colors import to_hex
from report.page.test_other_pages import hybrid, pipeline
from report.plot.plans import drawn

from dlplacer.planning.compare import Comparison, MethodResult
from dlplacer.report.plot import plot_comparison, plot_hybrid, plot_pipeline
from dlplacer.report.plot.style import IDLE


def test_methods_have_bars_that_are_solid_up_to_the_bound() -> None:
    rows = (
        MethodResult("ilp", "optimal", 0.004, 1.5),
        MethodResult("heft", "feasible", 0.005, 0.1),
        MethodResult("min-cut", "not installed", None, 0.0),
    )
    ax = drawn(plot_comparison, Comparison(rows, lower_bound_s=0.004, single_device_s=0.006))
    assert [(round(bar.get_y()), bar.get_width()) for bar in ax.patches] == [
        *((0, 0.004), (0, 0.004)),
        *((1, 0.005), (1, 0.004)),
    ]
    labels = ["4 ms  1.50×  optimal", "5 ms  1.20×  gap 20 %", "not installed"]
    assert [text.get_text() for text in ax.texts] == labels


@pytest.mark.parametrize("makespan_s", [None, 0.0])
def test_nothing_to_compare(makespan_s: float | None) -> None:
    status = "no plan" if makespan_s is None else "optimal"
    ax = drawn(plot_comparison, Comparison((MethodResult("list", status, makespan_s, 0.1),), 0.0, None))
    assert ax.get_xlim() == (0, 1)


def test_a_pipeline_has_a_bar_for_every_pass_and_one_behind_each_row() -> None:
    plan = pipeline("1f1b")
    ax = drawn(plot_pipeline, plan)
    idle = [bar for bar in ax.patches if to_hex(bar.get_facecolor()) == IDLE]
    assert [bar.get_width() for bar in idle] == [plan.step_s] * 2
    busy = [bar for bar in ax.patches if bar not in idle]
    assert len(busy) == sum(map(len, plan.order))
    assert sum(bar.get_width() for bar in busy) == pytest.approx(plan.timeline.busy_s)
    assert {"0F0", "1B0", "0B1"} <= {text.get_text() for text in ax.texts}
    assert "1f1b, 2 stages, 4 micro-batches" in ax.get_title(loc="left")


def test_a_hybrid_has_a_line_per_degree_through_the_speedups() -> None:
    ax = drawn(plot_hybrid, hybrid())
    lines = {str(line.get_label()): line for line in ax.lines}
    assert list(lines["data parallelism"].get_xdata()) == list(range(1, 65))
    assert list(lines["hybrid, 4 devices per worker"].get_xdata()) == list(range(4, 65, 4))
    assert lines["hybrid, 2 devices per worker"].get_ydata()[-1] == pytest.approx(42.24)
    assert lines["data parallelism"].get_ydata()[-1] == pytest.approx(36.571, abs=1e-3)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "wins from 54" in " ".join(text.get_text() for text in ax.texts)
