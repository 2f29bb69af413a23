"""Speedup over devices: lines, labels, the first win."""

import pytest
from report.plot.plans import drawn

from dlplacer.planning.hybrid import EpochsTable, HybridProblem, SpeedupTable, StatisticalEfficiency, Work, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.report.plot import plot_hybrid


def plan(devices: int = 64) -> HybridPlan:
    efficiency = StatisticalEfficiency(EpochsTable({32: 4.0, 64: 7.0}))
    problem = HybridProblem(Work(1.0, name="net $x$"), efficiency, SpeedupTable({2: 1.32, 4: 2.0}))
    return plan_hybrid(problem, devices)


def test_a_line_per_degree_through_the_speedups() -> None:
    found = plan()
    ax = drawn(plot_hybrid, found)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[:3] == ["data parallelism", "hybrid, 2 devices per worker", "hybrid, 4 devices per worker"]
    lines = {str(line.get_label()): line for line in ax.lines}
    assert list(lines["data parallelism"].get_xdata()) == list(range(1, 65))
    assert list(lines["hybrid, 4 devices per worker"].get_xdata()) == list(range(4, 65, 4))
    assert lines["hybrid, 2 devices per worker"].get_ydata()[-1] == pytest.approx(42.24)
    assert lines["data parallelism"].get_ydata()[-1] == pytest.approx(36.571, abs=1e-3)
    best = lines["best, idle devices allowed"]
    assert best.get_zorder() > max(line.get_zorder() for line in ax.lines if line is not best)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "wins from 54" in " ".join(text.get_text() for text in ax.texts)
