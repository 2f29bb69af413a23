"""Whatever a user gets wrong ends in one message and exit code 2, before any work, with nothing written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlplacer.cli.main import main

MODELS = """
import sys
from torch import nn

value = 3

def raises():
    return open("the data set")

def leaves():
    sys.exit(3)

def number():
    return 7

def bare():
    return nn.Linear(8, 4)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with what users mistake for models, graphs and plans."""
    (tmp_path / "mistaken.py").write_text(MODELS)
    (tmp_path / "unfinished.py").write_text("def f(:\n")
    (tmp_path / "lonely.py").write_text("import no_such_package\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "broken.json").write_text('{"format": ')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mistaken", "unfinished", "lonely"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    return main(arguments), capsys.readouterr().err


INFER = ["solve", "inception_v3-infer", "cpu-2core"]
HYBRID = ["hybrid", "inception_v3-train", "dgx1-v100-2gpu", "--devices", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*INFER, "--dim", "batch=3"], "--dim says how to capture a model, but 'inception_v3-infer' is a graph file"),
        ([*INFER, "-o", "missing/plan.json"], "cannot write missing/plan.json: there is no folder"),
        (["solve", "broken.json", "cpu-2core"], "the file must be JSON"),
        (["pipeline", "inception_v3-infer", "cpu-2core", "--picture", "x.jpg"], "x.jpg ends in 'jpg', which is no"),
        (
            ["check", "plan.json"],
            "there is no plan file 'plan.json'; `dlplacer solve MODEL TOPOLOGY -o PLAN` writes one",
        ),
        ([*INFER, "--pin", "Mixed_5z=cpu0"], "no op or module 'Mixed_5z'; it has 'Mixed_5d', 'Mixed_5c', 'Mixed_5b'"),
        ([*HYBRID, "--speedup", "2=0"], "argument --speedup: 0 is given for 2 devices; it must be positive"),
        ([*INFER, "--split", "--pin", "x=cpu0"], "--pin does not go together with --split"),
        (
            ["solve", "dlplacer.models:mlp", "cpu-2core", "--split", "1"],
            "argument --split: 1 is given; give auto or at least 2 parts",
        ),
    ],
)
def test_wrong_arguments_are_told_in_one_message(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    code, text = told(arguments, capsys)
    assert code == 2
    assert message in text
    assert len(text.splitlines()) <= 2, "one message, with a second line for the mistake in a file at most"
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("mistaken:raises", r"'mistaken:raises' cannot be built: FileNotFoundError: \[Errno 2\].*mistaken\.py:8\)"),
        ("unfinished:f", r"module 'unfinished' cannot be imported: SyntaxError: .*unfinished\.py:1\)"),
        ("nowhere:f", "there is no module 'nowhere' for 'nowhere:f'"),
        ("mistaken:value", "is an object of type int; give a function"),
        ("mistaken:bare", "returned a bare Linear; give --input"),
    ],
)
def test_mistakes_in_the_users_own_code_are_not_called_internal(
    entry: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = told(["capture", entry, "-o", "graph.json"], capsys)
    assert code == 2
    assert re.search(message, text), text
    assert "internal" not in text
    assert "Traceback" not in text
    assert not (folder / "graph.json").exists()


@pytest.mark.parametrize("command", ["run", "profile"])
def test_help_survives_a_locale_without_unicode(command: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-m", "dlplacer", command, "--help"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"--device" in done.stdout.replace(b"?", b"")


def test_names_are_never_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = tmp_path / "machine.json"
    nodes = [{"id": "[red]a[/]", "kind": "device"}, {"id": "[/b]", "kind": "device", "type": ":smile:"}]
    machine.write_text(json.dumps({"format": "dlplacer.topology/1", "name": "[bold]box", "nodes": nodes, "edges": []}))
    assert main(["topology", "show", str(machine)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("[red]a[/]", "[/b]", ":smile:", "[bold]box"))
