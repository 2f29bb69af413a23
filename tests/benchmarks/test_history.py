"""The history of benchmark runs: one line each, compared with the last one like it."""

import json
from pathlib import Path

from benchmarks.history import append, changes, entries, entry, last_alike, report


def test_an_entry_tells_versions_and_machine() -> None:
    line = entry("quick", {"ratio": 0.123456789, "growth": {"layered": 1.5, "none": None}}, 0.517)
    assert line["figures"] == {"ratio": 0.123457, "growth": {"layered": 1.5, "none": None}}
    assert (line["set"], line["load"]) == ("quick", 0.52)
    assert line["machine"]["cores"] >= 1
    assert line["machine"]["memory_gib"] > 0
    assert line["machine"]["cpu"]
    assert {"python", "dlplacer", "torch", "ortools", "numpy", "commit"} == line["versions"].keys()
    assert line["versions"]["ortools"].startswith("9.")


def test_every_run_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert entries(path) == []
    lines = [entry("quick", {"ratio": ratio}, 0.0) for ratio in (0.5, 0.25)]
    for line in lines:
        append(path, line)
    assert [json.loads(text) for text in path.read_text().splitlines()] == lines == entries(path)


def test_a_run_is_compared_with_the_last_of_its_set_and_machine(tmp_path: Path) -> None:
    first, second, third = (entry("quick", {"ratio": ratio, "mean": {"gap": 0.1}}, 0.0) for ratio in (1.0, 0.8, 0.6))
    elsewhere = {**third, "machine": {**third["machine"], "cpu": "another"}}
    other_set = {**third, "set": "small"}
    assert last_alike([first, second, elsewhere, other_set], third) is second
    assert last_alike([elsewhere, other_set], third) is None
    ratio, gap = changes(second, third)
    assert ratio.split() == ["ratio", "0.8", "0.6", "-25.0%"]
    assert gap.split() == ["mean", "gap", "0.1", "0.1", "+0.0%"]
    path = tmp_path / "history.jsonl"
    assert "has no earlier run" in report(path, third)
    append(path, second)
    assert "-25.0%" in report(path, third)


# A figure that was nothing has no change in percent, and one that only one run has is left out.
def test_figures_without_a_change() -> None:
    before, now = entry("quick", {"a": 0.0, "b": 1.0}, 0.0), entry("quick", {"a": 2.0, "c": 1.0}, 0.0)
    assert [line.split() for line in changes(before, now)] == [["a", "0", "2", "-"]]
