"""The schedule of a pipeline: a row per device, a bar per pass, grey where it waits."""

import pytest
from matplotlib.colors import to_hex
from planning.pipeline.graphs import chain, devices
from report.plot.plans import drawn

from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.report.plot import plot_pipeline
from dlplacer.report.plot.style import IDLE


def planned(schedule: str, micro_batches: int = 4) -> PipelinePlan:
    graph, topology = chain([1, 1, 1, 1], bytes_=0), devices(["x", "x"])
    return plan_pipeline(graph, topology, stages=2, micro_batches=micro_batches, schedule=schedule)


def test_a_bar_for_every_pass_and_one_behind_each_row() -> None:
    plan = planned("1f1b")
    bars = drawn(plot_pipeline, plan).patches
    idle = [bar for bar in bars if to_hex(bar.get_facecolor()) == IDLE]
    assert [bar.get_width() for bar in idle] == [plan.step_s] * 2
    busy = [bar for bar in bars if bar not in idle]
    assert len(busy) == sum(map(len, plan.order)) == 16
    assert sum(bar.get_width() for bar in busy) == pytest.approx(plan.timeline.busy_s)


def test_passes_are_named_and_the_title_tells_the_bubble() -> None:
    ax = drawn(plot_pipeline, planned("zero-bubble"))
    assert {"0F0", "1I0", "0W1"} <= {text.get_text() for text in ax.texts}
    assert "zero-bubble, 2 stages, 4 micro-batches" in ax.get_title(loc="left")
    assert "bubble" in ax.get_title(loc="left")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["d0", "d1"]
