"""The study of phases: what they earned adds up to what was reached, and every phase is one of the default method's."""

import inspect
import re

import pytest
from benchmarks.phase_study import CASES, PHASES, Study, as_markdown, study, table

from dlplacer.solvers import default_method, phases


def test_every_phase_is_watched() -> None:
    sources = map(inspect.getsource, (default_method._run_phases, phases.search_phases))
    called = {name for source in sources for name in re.findall(r"\b(_\w+|search_elsewhere)\(", source)}
    unwatched = {"_run_phases", "_contract", "_find_segments", "_annealing_ahead", "_compiled", "_others"}
    assert called - unwatched == set(PHASES)


def test_what_phases_earned_adds_up() -> None:
    found = study(next(case for case in CASES if case.name.startswith("fork-join")), 5.0, 0)
    assert found.gap == 0
    assert sum(found.bound.values()) == pytest.approx(100)
    assert all(percent >= 0 for percent in (*found.plan.values(), *found.bound.values()))
    assert found.plan["starts"] > 0
    assert found.bound["bounds"] > 50


def test_the_table_shows_medians_and_leaves_out_what_brought_nothing() -> None:
    studies = [Study({"starts": plan}, {"bounds": 90.0, "segments": 0.001}, 0.02, 4.0) for plan in (10.0, 30.0, 20.0)]
    head, row = table({"case": studies})
    assert dict(zip(head, row, strict=True)) | {"graph and machine": "", "seconds": ""} == {
        **dict.fromkeys(PHASES.values(), "–"),
        "graph and machine": "",
        "starts": "20.00 / –",
        "bounds": "– / 90.00",
        "gap": "2.00 %",
        "seconds": "",
    }
    assert as_markdown([head, row]).count("\n") == 3
