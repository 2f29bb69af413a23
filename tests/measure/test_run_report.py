"""The page of a run: its figures by name, both steps on one axis."""

from dataclasses import replace

from report.page.reading import ReadPage
from report.plot.plans import diamond

from dlplacer.measure.run_report import Run, RunReport, page_of_run

REPORT = RunReport(
    predicted_s=0.011,
    measured_s=0.012,
    predicted_speedup=1.5,
    measured_speedup=1.4,
    prediction_error=1 / 12,
    max_abs_error=0.0,
    plan_makespan_s=0.010,
    baseline_s=0.0168,
    steps=10,
    devices=("cpu:0", "cpu:1"),
)


def test_both_steps_are_on_the_page() -> None:
    measured = replace(diamond(), method="measured", transfers=(), memory={})
    said = "Nothing is lost to <idle> devices."
    text = page_of_run(Run(replace(REPORT, conclusion=said), diamond(), measured))
    page = ReadPage(text)
    assert text.count('<p class="conclusion" id="conclusion">Nothing is lost to &lt;idle&gt; devices.</p>') == 1
    assert 'id="conclusion"' not in page_of_run(Run(REPORT, diamond(), measured))
    assert [schedule["name"] for schedule in page.data["schedules"]] == ["predicted", "measured"]
    assert page.data["shown"] == [0, 1]
    assert page.title == "small on pair: predicted and measured"
    assert ["plain PyTorch, one device", "16.8 ms"] in page.rows
