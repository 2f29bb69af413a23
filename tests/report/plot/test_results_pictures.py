"""Pictures of a pipeline's schedule, and of speedups over devices."""

import pytest
from matplotlib.colors import to_hex
from report.page.test_other_pages import hybrid, pipeline
from report.plot.plans import drawn

from dlplacer.report.plot import plot_hybrid, plot_pipeline
from dlplacer.report.plot.style import IDLE


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
    assert "hybrid wins from 54" in lines
