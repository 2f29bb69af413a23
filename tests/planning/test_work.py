"""A solve whose clock counts work: plan and bound are the same whatever the machine does meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

from dlplacer.cli.main import main
from dlplacer.core.topology import Topology
from dlplacer.files.load import load_graph, load_topology
from dlplacer.planning.place import place

_SOLVE = ("solve", "inception_v3-infer", "mixed-2gpu", "--work", "0.5", "-o")


def test_two_runs_on_one_core_and_on_all_give_the_same_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert main([*_SOLVE, str(first), "--quiet"]) == 0
    # Other hashes of texts too: an order taken from a set would be another one.
    command = [sys.executable, "-m", "dlplacer", *_SOLVE, str(second), "--quiet"]
    core = min(os.sched_getaffinity(0))
    subprocess.run(["taskset", "-c", str(core), *command], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert first.read_bytes() == second.read_bytes()


def test_issue_costs_are_searched_for_the_same_work() -> None:
    topology: Topology = load_topology("mixed-2gpu")
    plans = [place(load_graph("inception_v3-infer"), topology, work_s=0.3, issue="eager").plan for _ in range(2)]
    assert plans[0] == plans[1]
