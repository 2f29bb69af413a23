"""The table of pictures: what it lists can be drawn, is exported, and is offered by a command."""

import inspect
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report.plot.plans import diamond

import dlplacer.report.plot as package
from dlplacer.cli.main import build_parser
from dlplacer.report.plot.pictures import PICTURES, Picture

COMMANDS = {
    "plan": ("show", "plan.json"),
    "hybrid plan": ("hybrid", "graph.json", "topology.json", "--devices", "2", "--epochs", "epochs.json"),
    "pipeline plan": ("pipeline", "graph.json", "topology.json"),
    "topology": ("topology", "show", "topology.json"),
    "fit": ("fit", "config.json", "RTX3090"),
    "run": ("run", "plan.json", "--devices", "cpu:0"),
}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_row_is_all_that_a_picture_needs(picture: Picture) -> None:
    parameters = list(inspect.signature(getattr(package, f"plot_{picture.name}")).parameters)
    assert parameters[1] in ("ax", "axes")
    asked = build_parser().parse_args([*COMMANDS[picture.subject], f"--{picture.option}", "x.svg"])
    assert getattr(asked, picture.option).name == "x.svg"


@pytest.mark.parametrize("name", ["gantt", "memory", "placement"])
def test_a_long_title_keeps_its_figures_and_fits(name: str) -> None:
    plan = diamond()
    plan = replace(plan, graph=replace(plan.graph, name="W" * 200), topology=replace(plan.topology, name="M" * 200))
    figure = Figure(layout="constrained")
    ax = getattr(package, f"plot_{name}")(plan, figure)
    FigureCanvasAgg(figure).draw()
    (title,) = (text for text in ax.get_children() if getattr(text, "get_text", str)().startswith(("W", "Memory: W")))
    assert "…" in title.get_text()
    assert "11 s per step" in title.get_text()
    assert title.get_window_extent().x1 <= figure.bbox.width


@pytest.mark.parametrize("name", ["gantt", "memory"])
def test_the_time_axis_of_a_plan_that_takes_no_time(name: str) -> None:
    plan = diamond()
    still = tuple(replace(entry, start_s=0.0, end_s=0.0) for entry in plan.ops)
    plan = replace(plan, ops=still, transfers=(), makespan_s=0.0, lower_bound_s=0.0)
    ax: Axes = getattr(package, f"plot_{name}")(plan, Figure().add_subplot())
    assert (ax.get_xlim(), ax.get_xlabel().split("\n")[0]) == ((0, 1), "time (ms)")
