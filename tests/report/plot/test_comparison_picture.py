"""Methods side by side: bars, bound, labels."""

import pytest
from report.plot.plans import drawn

from dlplacer.planning.compare import Comparison, MethodResult
from dlplacer.report.plot import plot_comparison

COMPARISON = Comparison(
    (
        MethodResult("ilp", "optimal", 0.004, 1.5),
        MethodResult("heft", "feasible", 0.005, 0.1),
        MethodResult("min-cut", "not installed", None, 0.0),
    ),
    lower_bound_s=0.004,
    single_device_s=0.006,
    name="net on box",
)


def test_bars_are_as_long_as_the_step_times_and_solid_up_to_the_bound() -> None:
    bars = drawn(plot_comparison, COMPARISON).patches
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in bars] == [
        (0, 0.004),
        (0, 0.004),
        (1, 0.005),
        (1, 0.004),
    ]
    assert len({bar.get_facecolor() for bar in bars}) == 2


def test_labels_say_time_speedup_and_gap_or_why_there_is_no_plan() -> None:
    assert [text.get_text() for text in drawn(plot_comparison, COMPARISON).texts] == [
        "4 ms  1.50×  optimal",
        "5 ms  1.20×  gap 20 %",
        "not installed",
    ]


@pytest.mark.parametrize("makespan_s", [None, 0.0])
def test_nothing_to_draw(makespan_s: float | None) -> None:
    status = "no plan" if makespan_s is None else "optimal"
    ax = drawn(plot_comparison, Comparison((MethodResult("list", status, makespan_s, 0.1),), 0.0, None))
    assert ax.get_xlim() == (0, 1)
