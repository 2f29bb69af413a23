"""The table of pictures: what it lists can be drawn, is exported, and is offered by a command."""

import inspect

import pytest

import dlplacer.report.plot as package
from dlplacer.cli.main import build_parser
from dlplacer.report.plot.pictures import PICTURES, Picture

COMMANDS = {
    "plan": ("show", "plan.json"),
    "comparison": ("compare", "graph.json", "topology.json"),
    "hybrid plan": ("hybrid", "graph.json", "topology.json", "--devices", "2", "--epochs", "epochs.json"),
    "pipeline plan": ("pipeline", "graph.json", "topology.json"),
    "topology": ("topology", "show", "topology.json"),
}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_row_is_all_that_a_picture_needs(picture: Picture) -> None:
    parameters = list(inspect.signature(picture.plot).parameters)
    assert parameters[1] == "ax"
    assert set(picture.settings) <= set(parameters)
    assert callable(picture.size)
    assert getattr(package, f"plot_{picture.name}") is picture.plot
    asked = build_parser().parse_args([*COMMANDS[picture.subject], f"--{picture.option}", "x.svg"])
    assert getattr(asked, picture.option).name == "x.svg"


def test_names_differ() -> None:
    assert len({picture.name for picture in PICTURES}) == len(PICTURES)
