"""solve, compare, check, show, capture on the command line: output, files, exit codes, one-line messages."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlplacer.cli.main import main
from dlplacer.solvers.methods import METHODS


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.startswith("dlplacer: ")
    assert "Traceback" not in text
    return text


def test_solve_prints_json_and_writes_a_plan_that_passes_check(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    assert main(["solve", *map(str, files), "--paper", "--json", "-o", str(plan)]) == 0
    printed = json.loads(capsys.readouterr().out)
    # a, b on x; c and d on y: c starts at 1 + 0.1, ends at 3.1, when b's tensor (3 + 0.1) is there too: 4.1 s.
    assert printed["status"] == "optimal"
    assert printed["makespan_s"] == pytest.approx(4.1)
    assert printed["lower_bound_s"] == pytest.approx(4.1)
    assert printed["gap"] == 0
    assert printed["speedup"] == pytest.approx(6 / 4.1)
    assert {"rounding_s", "solve_s", "method"} <= printed.keys()
    assert main(["check", str(plan)]) == 0
    assert "keep every rule" in capsys.readouterr().out
    assert main(["check", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "violations": []}
    assert main(["show", str(plan)]) == 0
    assert "makespan" in capsys.readouterr().out


def test_what_fits_nowhere_is_infeasible(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "heavy.json"
    nodes = [{"id": str(number), "kind": "op", "time_s": 1.0, "weight_bytes": 300} for number in range(3)]
    path.write_text(json.dumps({"format": "dlplacer.graph/1", "nodes": nodes, "edges": []}))
    assert main(["solve", str(path), str(files[1]), "--time-limit", "120"]) == 3
    text = error_of(capsys)
    assert "900" in text
    assert "800" in text


def test_a_broken_plan_fails_the_check(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert main(["solve", *map(str, files), "-o", str(path)]) == 0
    plan = json.loads(path.read_text())
    plan["ops"][-1]["start_s"] -= 1
    plan["ops"][-1]["end_s"] -= 1
    path.write_text(json.dumps(plan))
    capsys.readouterr()
    assert main(["check", str(path)]) == 5
    assert "eq. 10" in error_of(capsys)
    assert main(["check", str(path), "--json"]) == 5
    assert not json.loads(capsys.readouterr().out)["valid"]


def test_the_shipped_graph_is_solved_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from dlplacer.cli.main import main\n"
        "raise SystemExit(main(['solve', 'inception_v3-infer', 'dgx1-v100-2gpu', '--work', '1', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert 0 < printed["lower_bound_s"] <= printed["makespan_s"]
    assert printed["speedup"] > 1.1


# The program tells when it has its first plan, so that Ctrl-C comes neither before it nor after the search.
SOLVE_AND_TELL = """
import contextlib, sys
from dlplacer.cli import actions, main

@contextlib.contextmanager
def telling(what, limit_s=None):
    yield lambda *told: getattr(told[0], "makespan_s", None) and print("planned", flush=True) if told else None

actions.progress = telling
raise SystemExit(main.main(sys.argv[1:]))
"""


def test_interrupt_keeps_the_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    command = ["solve", "inception_v3-train", "dgx1-v100-2gpu", "-o", str(plan), "--time-limit", "3600"]
    process = subprocess.Popen(
        [sys.executable, "-c", SOLVE_AND_TELL, *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "planned\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "stopping with the best plan so far" in errors
    assert main(["check", str(plan)]) == 0


def test_missing_package_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; from dlplacer.cli.main import main; main(['capture', 'a:b'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dlplacer[torch]" in done.stderr


def test_compare_prints_every_method(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[1].write_text(files[1].read_text().replace("400", "300"))
    assert main(["compare", *map(str, files), "--paper", "--json", "--time-limit", "120", "--workers", "1"]) == 0
    captured = capsys.readouterr()
    rows = {row["method"]: row for row in json.loads(captured.out)["methods"]}
    assert set(rows) == set(METHODS)
    assert all({"method", "makespan_s", "lower_bound_s", "solve_s", "status"} <= row.keys() for row in rows.values())
    # a, b on x, c, d on y: c 1.1-3.1, d when b's tensor is there at 3.1: 4.1. No device has room for all four.
    assert rows["ilp"]["makespan_s"] == pytest.approx(4.1)
    assert rows["ilp"]["status"] == "optimal"
    assert rows["single"]["status"] == "infeasible"
    assert rows["single"]["makespan_s"] is None
    assert all(row["makespan_s"] is None or row["makespan_s"] >= row["lower_bound_s"] for row in rows.values())
    assert captured.err == ""
