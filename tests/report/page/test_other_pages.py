"""Pages of pipelines, comparisons and hybrid plans, and the options that write pages."""

import json
from pathlib import Path
from typing import Any

import pytest
from planning.pipeline.graphs import chain, devices
from report.page.long_plans import long_plan
from report.page.reading import ReadPage, urls_in
from report.plot.plans import diamond

from dlplacer.cli.main import main
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.files import write_graph, write_plan, write_topology
from dlplacer.planning.compare import Comparison, MethodResult, compare
from dlplacer.planning.hybrid import EpochsTable, HybridProblem, SpeedupTable, StatisticalEfficiency, Work, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.report.page.comparison_page import comparison_page
from dlplacer.report.page.hybrid_page import hybrid_page
from dlplacer.report.page.pipeline_page import passes_as_plan, pipeline_page

SCHEDULES = ("gpipe", "1f1b", "zero-bubble")


def pipeline(schedule: str = "1f1b", micro_batches: int = 4) -> PipelinePlan:
    """Two stages on devices a link apart, so that activations and gradients travel."""
    graph, topology = chain([1, 2, 3, 4], bytes_=2), devices(["x", "x"])
    return plan_pipeline(graph, topology, stages=2, micro_batches=micro_batches, schedule=schedule)


def compared() -> Comparison:
    plan = long_plan(60, devices=2)
    return compare(plan.graph, plan.topology, methods=["heft", "etf", "single"])


def hybrid(count: int = 64) -> HybridPlan:
    efficiency = StatisticalEfficiency(EpochsTable({32: 4.0, 64: 7.0}))
    return plan_hybrid(HybridProblem(Work(1.0, name="net"), efficiency, SpeedupTable({2: 1.32, 4: 2.0})), count)


def table(page: ReadPage, title: str) -> dict[str, list[Any]]:
    (found,) = (each for each in page.data["tables"] if each["title"] == title)
    return {column["name"]: column["values"] for column in found["columns"]}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_passes_are_ops(schedule: str) -> None:
    found = pipeline(schedule)
    plan = passes_as_plan(found)
    timeline = found.timeline
    passes = [entry for entry in plan.ops if plan.graph.op(entry.op).phase != "optimizer"]
    assert {entry.op for entry in passes} == {str(action) for actions in found.order for action in actions}
    assert sum(entry.end_s - entry.start_s for entry in plan.ops) == pytest.approx(timeline.busy_s)
    assert len(plan.transfers) == len(timeline.transfers)
    assert sorted((sent.start_s, sent.end_s) for sent in plan.transfers) == sorted(
        (span.begin_s, span.end_s) for span in timeline.transfers
    )
    for edge in plan.graph.edges:
        assert plan.scheduled[edge.source].end_s <= plan.scheduled[edge.target].start_s + 1e-9


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_tensor_between_stages_travels(schedule: str) -> None:
    plan = passes_as_plan(pipeline(schedule))
    sent = {(each.tensor, each.target): each for each in plan.transfers}
    away = [edge for edge in plan.graph.edges if plan.placement[edge.source] != plan.placement[edge.target]]
    assert away
    for edge in away:
        transfer = sent[edge.tensor, plan.placement[edge.target]]
        assert transfer.source == edge.source
        assert transfer.end_s <= plan.scheduled[edge.target].start_s + 1e-9


def test_the_page_of_a_pipeline_lists_its_stages() -> None:
    found = pipeline()
    page = ReadPage(pipeline_page(found))
    assert table(page, "Stages")["device"] == [stage.device for stage in found.stages]
    forward_s = page.seconds(table(page, "Stages")["forward"])
    assert forward_s == pytest.approx([stage.forward_s for stage in found.stages])
    assert ["step", format_seconds(found.step_s)] in page.rows
    assert page.data["colorBy"][0] == ["module", "micro-batch"]
    assert page.data["schedules"][0]["memory"] == {}
    blocks = {page.data["texts"][block] for block in page.data["graphs"][0]["block"]}
    assert blocks == {f"micro-batch {number}" for number in range(4)}


def test_the_page_of_a_comparison_has_every_plan() -> None:
    found = compared()
    page = ReadPage(comparison_page(found))
    methods = table(page, "Methods")
    assert methods["method"] == [row.method for row in found.rows]
    assert page.seconds(methods["step"]) == pytest.approx([row.makespan_s for row in found.rows])
    assert [schedule["name"] for schedule in page.data["schedules"]] == methods["method"]
    assert page.data["tables"][0]["schedules"] == [0, 1, 2]
    assert len(page.data["graphs"]) == 1


def test_a_method_without_a_plan_has_a_row_and_no_schedule() -> None:
    found = compared()
    without = Comparison((found.rows[0], MethodResult("min-cut", "not installed", None, 0.0)), 1.0, None)
    page = ReadPage(comparison_page(without))
    assert table(page, "Methods")["step"][1] is None
    assert page.data["tables"][0]["schedules"] == [0, None]
    nothing = ReadPage(comparison_page(Comparison(without.rows[1:], 1.0, None)))
    assert "schedules" not in nothing.data


def test_the_page_of_a_hybrid_has_every_budget() -> None:
    found = hybrid()
    page = ReadPage(hybrid_page(found, [("warning", "look out")]))
    budgets = table(page, "Budgets")
    assert budgets["devices"] == list(range(1, 65))
    assert budgets["speedup"] == [found.speedup(each.best) for each in found.budgets]
    lines = {series["name"]: series["points"] for series in page.data["chart"]["series"]}
    assert [point[0] for point in lines["hybrid, 4 devices per worker"]] == list(range(4, 65, 4))
    assert lines["data parallelism"][-1][1] == pytest.approx(36.571, abs=1e-3)
    assert page.data["chart"]["marks"] == [{"at": 54, "text": "hybrid wins from 54"}]
    assert ["warning", "look out"] in page.rows


def test_a_long_chart_is_thinned() -> None:
    chart = ReadPage(hybrid_page(hybrid(2000))).data["chart"]
    points = chart["series"][-1]["points"]
    assert len(points) <= 258
    assert points[0][0] == 1
    assert points[-1][0] == 2000


@pytest.mark.parametrize(
    "text",
    [pipeline_page(pipeline()), comparison_page(compared()), hybrid_page(hybrid(8))],
    ids=["pipeline", "comparison", "hybrid"],
)
def test_they_load_nothing(text: str) -> None:
    assert ReadPage(text).addresses == ["data:,"]
    assert not urls_in(text)


def written(path: Path, *command: str) -> ReadPage:
    assert main([*command, "--html", str(path)]) == 0
    return ReadPage(path.read_text(encoding="utf-8"))


def saved(path: Path, plan: Plan) -> str:
    write_plan(path, plan)
    return str(path)


def test_show_writes_one_or_two_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = saved(tmp_path / "first.json", diamond()), saved(tmp_path / "second.json", diamond())
    page = written(tmp_path / "page.html", "show", first)
    assert [schedule["name"] for schedule in page.data["schedules"]] == ["plan"]
    page = written(tmp_path / "page.html", "show", first, "--against", second)
    assert [schedule["name"] for schedule in page.data["schedules"]] == ["first", "second"]
    page = written(tmp_path / "page.html", "show", first, "--against", first)
    assert [schedule["name"] for schedule in page.data["schedules"]] == ["A", "B"]
    capsys.readouterr()
    assert main(["show", first, "--against", second]) == 2
    assert "--against" in capsys.readouterr().err


def test_compare_and_pipeline_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = long_plan(40, devices=2)
    write_graph(tmp_path / "graph.json", plan.graph)
    write_topology(tmp_path / "box.json", plan.topology)
    subject = (str(tmp_path / "graph.json"), str(tmp_path / "box.json"))
    page = written(tmp_path / "c.html", "compare", *subject, "--methods", "heft,etf")
    assert sorted(table(page, "Methods")["method"]) == ["etf", "heft"]
    page = written(tmp_path / "p.html", "pipeline", *subject, "--stages", "2", "--time-limit", "0")
    assert len(table(page, "Stages")["stage"]) == 2
    assert f"wrote {tmp_path / 'p.html'}" in capsys.readouterr().err


def test_hybrid_writes_a_page(tmp_path: Path) -> None:
    plan = long_plan(40, devices=2)
    write_graph(tmp_path / "graph.json", plan.graph)
    write_topology(tmp_path / "box.json", plan.topology)
    epochs = {"format": "dlplacer.epochs/1", "epochs": {"32": 4, "64": 7}}
    (tmp_path / "epochs.json").write_text(json.dumps(epochs))
    options = ("--epochs", str(tmp_path / "epochs.json"), "--devices", "8", "--speedup", "2=1.3")
    subject = (str(tmp_path / "graph.json"), str(tmp_path / "box.json"))
    page = written(tmp_path / "h.html", "hybrid", *subject, *options, "--scaling-efficiency", "1")
    assert table(page, "Budgets")["devices"] == list(range(1, 9))
