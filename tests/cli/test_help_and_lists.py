"""Help, lists, tables and quiet: what a newcomer meets first."""

import argparse
import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dlplacer.cli.commands import COMMANDS
from dlplacer.cli.main import build_parser, main
from dlplacer.files.load import shipped_names
from dlplacer.solvers.methods import METHODS, SUMMARIES


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(action.choices)


def shown_examples(parser: argparse.ArgumentParser) -> list[str]:
    """The command lines of a help text."""
    return [line.strip() for line in parser.format_help().splitlines() if line.startswith("  dlplacer ")]


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_help_ends_with_examples_that_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = shown_examples(commands()[name])
    assert examples
    for line in examples:
        words = shlex.split(line)
        assert words[:2] == ["dlplacer", name]
        parsed = build_parser().parse_args(words[1:])
        assert parsed.spec.help


def test_lists_name_what_the_other_commands_take(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for what in ("graphs", "topologies", "models", "methods", "devices"):
        assert main(["list", what, "--json"]) == 0
        found[what] = {row["name"]: row for row in json.loads(capsys.readouterr().out)[what]}
        assert main(["list", what]) == 0
        assert next(iter(found[what])) in capsys.readouterr().out
    assert set(found["graphs"]) == set(shipped_names("graphs"))
    assert found["graphs"]["inception_v3-train"]["ops"] == 1972
    assert set(found["topologies"]) == set(shipped_names("topologies"))
    assert found["topologies"]["dgx1-v100-8gpu"]["devices"] == 8
    assert set(found["methods"]) == set(METHODS) == set(SUMMARIES)
    assert "A training step of Inception-V3" in found["models"]["dlplacer.models:inception_v3"]["is"]
    assert {"cpu:0", "V100"} <= set(found["devices"])


def test_lists_and_help_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['ortools'] = None\n"
        "from dlplacer.cli.main import main\n"
        "raise SystemExit(main(['list', 'models']) or main(['list', 'graphs']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert b"dlplacer.models:inception_v3" in done.stdout


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    graph, topology, plan = (tmp_path / f"{name}.json" for name in ("graph", "topology", "plan"))
    nodes = [
        {"id": 'a, "b"', "kind": "op", "time_s": 1.0, "output_bytes": 8, "module": "net"},
        {"id": "c", "kind": "op", "time_s": 2.0},
    ]
    edges = [{"source": 'a, "b"', "target": "c", "bytes": 10}]
    graph.write_text(json.dumps({"format": "dlplacer.graph/1", "nodes": nodes, "edges": edges}))
    devices = [{"id": name, "kind": "device"} for name in "xy"]
    links = [{"source": "x", "target": "y", "bytes_per_s": 100.0}]
    topology.write_text(json.dumps({"format": "dlplacer.topology/1", "nodes": devices, "edges": links}))
    pins = ["--pin", 'a, "b"=x', "--pin", "c=y"]
    assert main(["-q", "solve", str(graph), str(topology), *pins, "-o", str(plan)]) == 0
    return plan


def test_csv_has_every_op_and_every_transfer(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(plan), "--csv", str(plan.with_name("ops.csv"))]) == 0
    assert "wrote" in capsys.readouterr().err
    with open(plan.with_name("ops.csv"), newline="") as file:
        ops = list(csv.DictReader(file))
    assert [(row["op"], row["module"], row["device"]) for row in ops] == [('a, "b"', "net", "x"), ("c", "", "y")]
    # 1 s for the op, 10 bytes over 100 bytes per second, 2 s for the next.
    assert [float(row["end_s"]) for row in ops] == pytest.approx([1.0, 3.1])
    with open(plan.with_name("ops-transfers.csv"), newline="") as file:
        (sent,) = csv.DictReader(file)
    ends = sent["source"], sent["from_device"], sent["to_device"], sent["route"]
    assert ends == ('a, "b"', "x", "y", "x → y")
    assert (sent["bytes"], float(sent["time_s"])) == ("10", pytest.approx(0.1))
