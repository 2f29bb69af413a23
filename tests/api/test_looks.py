"""How values look: short reprs, tables for notebooks, frames for pandas."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import dlplacer as dp

LINES, COLUMNS = 25, 80
"""Of a screen."""


@pytest.fixture(scope="module")
def result() -> dp.Result:
    return dp.place("inception_v3-infer", "dgx1-v100-8gpu", method="heft")


@pytest.fixture(scope="module")
def comparison() -> dp.Comparison:
    return dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods="heft, single, list")


@pytest.fixture(scope="module")
def pipeline() -> dp.PipelinePlan:
    return dp.pipeline("inception_v3-infer", "dgx1-v100-2gpu", stages=2, micro_batches=4)


@pytest.fixture(scope="module")
def hybrid() -> dp.HybridPlan:
    return dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 4, {1: 4, 4: 6}, speedups={2: 1.7})


@pytest.fixture(scope="module")
def run(result: dp.Result) -> dp.Run:
    """As if the plan had run twice as slowly as predicted."""
    report = dp.RunReport(
        predicted_s=0.1,
        measured_s=0.2,
        predicted_speedup=3.0,
        measured_speedup=1.5,
        prediction_error=0.5,
        max_abs_error=1e-7,
        plan_makespan_s=0.1,
        baseline_s=0.3,
        steps=10,
        devices=("cuda:0", "cuda:1"),
    )
    return dp.Run(report, result.plan, result.plan)


def fits(text: str) -> bool:
    return sum(-(-len(line) // COLUMNS) for line in text.splitlines()) <= LINES


def test_reprs_fit_on_a_screen(result, comparison, pipeline, hybrid, run) -> None:
    plan = result.plan
    shown = [
        *(
            result,
            plan,
            plan.graph,
            plan.topology,
            plan.options,
            comparison,
            pipeline,
            hybrid,
            run,
            dp.explain(plan, budget_s=0),
        ),
        *(plan.graph.ops[800], plan.transfers[3], dp.show(plan), dp.Device("d", meta={"x": "y" * 10**5})),
        dp.Job(nn.Sequential(*(nn.Linear(4, 4) for _ in range(500))), args=(torch.zeros(10**4, 4),) * 20, mode="infer"),
    ]
    for value in shown:
        assert fits(repr(value)), repr(value)[:500]


def test_notebooks_get_small_tables(result, comparison, pipeline, hybrid, run) -> None:
    plan = result.plan
    values = [plan, result, plan.graph, plan.topology, comparison, run, pipeline, hybrid, dp.explain(plan, budget_s=0)]
    for value in values:
        html = value._repr_html_()
        assert len(html) < 60_000
        assert "<script" not in html
        assert "http" not in html
        assert html.count("<table") >= 1
        assert [html.count(f"<{tag}") - html.count(f"</{tag}>") for tag in ("div", "tr", "svg", "table")] == [0] * 4
    shown = comparison._repr_html_()
    assert all(row.method in shown for row in comparison.rows)
    assert f"{run.report.prediction_error:.0%}".rstrip("%") in run._repr_html_()


def test_every_result_has_a_frame_and_a_file(comparison, pipeline, hybrid, result, tmp_path: Path) -> None:
    groups = dp.groups("inception_v3-train", "pcie-4gpu", direction="backward")
    batches = dp.advise_minibatch("inception_v3-train", "dgx1-v100-2gpu")
    shown = [
        (comparison, len(comparison.rows)),
        (pipeline, len(pipeline.stages)),
        (hybrid, 4),
        (dp.explain(result.plan, budget_s=0), len(result.plan.topology.devices)),
        (groups, len(groups.policies)),
        (batches, len(batches.plans)),
    ]
    for value, count in shown:
        assert len(value.to_frame()) == count, value
        path = value.save(tmp_path / "value.json")
        assert json.loads(path.read_text()).keys() == value.to_dict().keys()
    assert list(comparison.to_frame()["makespan_s"]) == [row.makespan_s for row in comparison.rows]


def test_names_are_escaped_and_direction_marks_are_codes() -> None:
    evil = "<img src=x onerror=alert(1)>\u202egnp.exe"
    graph = dp.OpGraph([dp.Op(evil, evil, 1.0)], name=evil)
    machine = dp.Topology([dp.Device(evil, evil)], name=evil)
    made = dp.place(graph, machine, method="heft")
    for value in (graph, machine, made, made.plan):
        html = value._repr_html_()
        assert "<img" not in html
        assert "\u202e" not in html
        assert "\u202e" not in repr(value)


def test_a_page_shows_saves_and_names_itself(result, tmp_path: Path) -> None:
    page = dp.show(result, tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text() == page.html
    assert page.title.startswith("InceptionV3 on dgx1-v100-8gpu: ")
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert "<html" not in frame
