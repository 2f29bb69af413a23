"""compare on the command line: table, JSON, picture, exit codes."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main
from dlplacer.solvers.methods import METHODS


def test_json_has_every_method(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
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
