"""Why a plan takes as long as it does."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place
from dlplacer.problem.dispatch import with_one_process
from dlplacer.problem.simulate import replay_plan
from dlplacer.report.explanation import explain

MACHINE = Topology((Device("x"), Device("y")), (), (Link("x", "y", 100.0),))


def planned(*ops: Op, edges: tuple[Edge, ...] = ()) -> Plan:
    return place(OpGraph(ops, edges), MACHINE, Options.paper(), time_limit_s=120).plan


# a (1) feeds b and c (2 each), both feed d (1); 10 bytes cross in 0.1 s: 4.1 s. All work shared is 3 s.
DIAMOND = (Op("a", "first", 1.0), Op("b", "middle", 2.0), Op("c", "middle", 2.0), Op("d", "last", 1.0))
EDGES = (Edge("a", "b", 10), Edge("a", "c", 10), Edge("b", "d", 10), Edge("c", "d", 10))


def test_a_diamond_is_limited_by_its_critical_path() -> None:
    found = explain(planned(*DIAMOND, edges=EDGES))
    assert found.limits_s == pytest.approx({"critical path": 4.1, "work": 3.0})
    assert found.limited_by == "critical path"
    assert found.path_ops_s == pytest.approx(4.0)
    assert found.path_transfers_s == pytest.approx(0.1)
    assert found.path_waits_s == pytest.approx(0.0)
    assert found.path_kinds_s == pytest.approx({"middle": 2.0, "first": 1.0, "last": 1.0})
    assert next(iter(found.path_kinds_s)) == "middle"
    assert sum(share.busy_s for share in found.devices) == pytest.approx(6.0)
    assert all(share.busy_s + share.idle_s == pytest.approx(4.1) for share in found.devices)
    assert sum(share.on_path_s for share in found.devices) == pytest.approx(4.0)
    assert sorted(sent.bytes for sent in found.transfers) == [10, 10]


# Ops of 1, 1 and 1.25 s on two devices need 2 s; the work says 1.625 s, or 1.75 s in whole ticks of 0.25 s.
def test_a_bound_that_the_plan_states_limits_nothing() -> None:
    found = explain(planned(*(Op(name, "k", 1.0) for name in "ab"), Op("c", "k", 1.25)))
    assert found.stated_bound_s == pytest.approx(2.0)
    assert found.limited_by == "work"


def test_a_slow_host_limits_many_small_ops() -> None:
    plan = planned(*(Op(name, "k", 1.0) for name in "abcd"))
    found = explain(replay_plan(plan, plan.graph, with_one_process(plan.topology, 2.0)))
    assert found.limits_s["dispatch"] == pytest.approx(9.0)
    assert found.limited_by == "dispatch"


def test_the_command_prints_tables_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(*DIAMOND, edges=EDGES).save(tmp_path / "plan.json")
    assert main(["explain", str(tmp_path / "plan.json"), "--dispatch", "8us", "--budget", "0"]) == 0
    printed = capsys.readouterr().out
    assert "limited by" in printed
    assert "critical path" in printed
    assert "longest transfers" in printed
    assert main(["explain", str(tmp_path / "plan.json"), "--budget", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["limited_by"] == "critical path"
    assert {step.get("op") for step in told["path"]} >= {"a", "d"}
    assert main(["explain", str(tmp_path / "plan.json"), "--dispatch", "8 parsecs"]) == 2
    assert "--dispatch: " in capsys.readouterr().err
