"""Pages of pipelines, comparisons and hybrid plans, and the options that write pages."""

from dataclasses import replace
from typing import Any

import pytest
from planning.pipeline.graphs import chain, devices
from report.page.long_plans import long_plan
from report.page.reading import ReadPage

from dlplacer.planning.compare import Comparison, compare
from dlplacer.planning.hybrid import EpochsTable, HybridProblem, SpeedupTable, StatisticalEfficiency, Work, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.pipeline.pipeline_plan import PipelinePlan
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.report.page.other_pages import comparison_page, hybrid_page, passes_as_plan

SCHEDULES = ("gpipe", "1f1b", "zero-bubble")


def pipeline(schedule: str = "1f1b", micro_batches: int = 4) -> PipelinePlan:
    """Two stages on devices a link apart, so that activations and gradients travel."""
    graph, topology = chain([1, 2, 3, 4], bytes_=2), devices(["x", "x"])
    return plan_pipeline(graph, topology, stages=2, micro_batches=micro_batches, schedule=schedule)


def compared() -> Comparison:
    plan = long_plan(60, devices=2)
    return compare(plan.graph, plan.topology, methods=["heft", "list", "single"])


def hybrid(count: int = 64) -> HybridPlan:
    efficiency = StatisticalEfficiency(EpochsTable({32: 4.0, 64: 7.0}))
    return plan_hybrid(HybridProblem(Work(1.0, name="net"), efficiency, SpeedupTable({2: 1.32, 4: 2.0})), count)


def table(page: ReadPage, title: str) -> dict[str, list[Any]]:
    (found,) = (each for each in page.data["tables"] if each["title"] == title)
    return {column["name"]: column["values"] for column in found["columns"]}


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


def test_the_page_of_a_comparison_has_every_plan() -> None:
    found = compared()
    page = ReadPage(comparison_page(found))
    methods = table(page, "Methods")
    assert methods["method"] == [row.method for row in found.rows]
    assert page.seconds(methods["step time"]) == pytest.approx([row.makespan_s for row in found.rows])
    assert [schedule["name"] for schedule in page.data["schedules"]] == methods["method"]
    assert page.data["tables"][0]["schedules"] == [0, 1, 2]
    assert len(page.data["graphs"]) == 1


def test_the_page_of_a_hybrid_has_every_budget() -> None:
    found = replace(hybrid(), warnings=("look out",))
    page = ReadPage(hybrid_page(found))
    budgets = table(page, "Budgets")
    assert budgets["devices"] == list(range(1, 65))
    assert budgets["speedup"] == [found.speedup(each.best) for each in found.budgets]
    lines = {series["name"]: series["points"] for series in page.data["chart"]["series"]}
    assert [point[0] for point in lines["hybrid, 4 devices per worker"]] == list(range(4, 65, 4))
    assert lines["data parallelism"][-1][1] == pytest.approx(36.571, abs=1e-3)
    assert page.data["chart"]["marks"] == [{"at": 54, "text": "hybrid wins from 54"}]
    assert ["warnings", "look out"] in page.rows
