"""Plan files: what is written reads back, and every mistake is listed with its path."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlplacer.check import violations
from dlplacer.core.errors import FileFormatError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import DeviceMemory, Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.formats import plan_to_dict, read_plan
from dlplacer.files.text import render_json


def crossing() -> Plan:
    """x on a for 2 s; 20 B over router r for 20 ÷ 10 + 20 ÷ 20 = 3 s; y on b for 3 s."""
    graph = OpGraph((Op("x", "test", 2.0), Op("y", "test", 3.0)), (Edge("x", "y", 20, tensor="t"),), "two ops")
    links = (Link("a", "r", 10.0), Link("r", "b", 20.0))
    return Plan(
        graph,
        Topology((Device("a", memory_bytes=100), Device("b")), (Router("r"),), links, "two devices"),
        Options.paper(),
        "optimal",
        makespan_s=8.0,
        lower_bound_s=8.0,
        gap=0.0,
        rounding_s=0.0,
        method="by hand",
        solve_s=0.25,
        ops=(ScheduledOp("x", "a", 0.0, 2.0), ScheduledOp("y", "b", 5.0, 8.0)),
        transfers=(Transfer("t", "x", "b", 20, (TransferSegment((("a", "r"), ("r", "b")), 2.0, 5.0),)),),
        memory={"a": DeviceMemory(100, 0), "b": DeviceMemory(None, 0)},
        provenance={"seed": 0},
        meta={"note": "é"},
    )


def as_json(plan: Plan) -> Any:
    return json.loads(render_json(plan_to_dict(plan)))


def read(tmp_path: Path, value: Any) -> Plan:
    (tmp_path / "it.json").write_text(json.dumps(value))
    return read_plan(tmp_path / "it.json")


def mistakes_in(tmp_path: Path, value: Any) -> list[str]:
    with pytest.raises(FileFormatError) as caught:
        read(tmp_path, value)
    assert str(caught.value).startswith(f"{tmp_path / 'it.json'}: ")
    return list(caught.value.mistakes)


@pytest.mark.parametrize("changes", [{}, {"options": Options(objective="throughput"), "period_s": 3.0}])
def test_plans_round_trip(tmp_path: Path, changes: dict[str, Any]) -> None:
    plan = replace(crossing(), **changes)
    again = read(tmp_path, as_json(plan))
    assert again == plan
    assert plan_to_dict(again) == plan_to_dict(plan)


def test_names_sources_notes_and_units_are_accepted(tmp_path: Path) -> None:
    value = as_json(crossing()) | {"name": "mine", "source": "a test", "makespan_s": "8000 ms", "gap": 0}
    value["ops"][0] |= {"meta": {"note": 1}, "end_s": "2 s"}
    value["transfers"][0] |= {"meta": {}, "bytes": "20 B"}
    value["problem"]["meta"] = {}
    assert read(tmp_path, value) == crossing()


def put(*path: Any, to: Any) -> Callable[[Any], None]:
    """A change of a JSON value: the field at a path."""

    def change(value: Any) -> None:
        for part in path[:-1]:
            value = value[part]
        value[path[-1]] = to

    return change


GRAPH, TOPOLOGY, HOP = ("problem", "graph"), ("problem", "topology"), ("transfers", 0, "segments", 0)
MISTAKES: dict[str, tuple[list[Callable[[Any], None]], list[str]]] = {
    "unknown fields": (
        [put("speed", to=1), put("ops", 0, "where", to="a"), put("problem", "machine", to={})],
        ["problem.machine", "ops[0].where", "speed"],
    ),
    "a transfer that goes nowhere": ([put("transfers", 0, "segments", to=[])], ["transfers[0].segments"]),
    "hops of other than two nodes": (
        [put(*HOP, "route", to=[["a"], ["a", "b", "c"], "ab"])],
        [*(f"transfers[0].segments[0].route{hop}" for hop in ("[0][1]", "[1]", "[2]", "")), "transfers[0].segments"],
    ),
    "options": (
        [put("problem", "options", "delay", to="short"), put("problem", "options", "speed", to="high")],
        ["problem.options.delay", "problem.options.speed"],
    ),
    "rules between the fields of the graph and of the topology": (
        [
            put(*GRAPH, "edges", 0, "target", to="x"),
            put(*TOPOLOGY, "edges", 1, to={"source": "r", "target": "a", "bytes_per_s": 1}),
            put("problem", "options", "step", to="twice"),
        ],
        ["problem.options.step"],
    ),
    "a newer plan": ([put("format", to="dlplacer.plan/2"), put("speed", to=1)], ["format"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_listed_with_its_path(tmp_path: Path, name: str) -> None:
    changes, expected = MISTAKES[name]
    value = as_json(crossing())
    for change in changes:
        change(value)
    assert [mistake.partition(": ")[0] for mistake in mistakes_in(tmp_path, value)] == expected


def test_a_plan_that_is_wrong_can_be_read(tmp_path: Path) -> None:
    value = as_json(crossing())
    value["ops"][1]["device"] = "nowhere"
    plan = read(tmp_path, value)
    assert [violation.rule for violation in violations(plan)] == ["eq. 7 placement"]
