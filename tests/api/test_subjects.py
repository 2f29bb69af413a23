"""What a person gives in place of a value: names, paths, results, option words; and what is said of anything else."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dlplacer as dp
from dlplacer.api.subjects import default_devices, plan_of

SHIPPED = Path(dp.__file__).parent.parent
MODULE = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
JOB = dp.Job(MODULE, (torch.zeros(8, 12),), (torch.zeros(8, dtype=torch.int64),), nn.functional.cross_entropy)


@pytest.fixture(scope="module")
def result() -> dp.Result:
    return dp.place("inception_v3-infer", "dgx1-v100-2gpu", method="heft")


def test_names_paths_and_values_mean_the_same(result: dp.Result) -> None:
    graph, machine = dp.load_graph("inception_v3-infer"), dp.load_topology("dgx1-v100-2gpu")
    files = SHIPPED / "graphs" / "inception_v3-infer.json", SHIPPED / "topologies" / "dgx1-v100-2gpu.json"
    for one, other in ((graph, machine), files, map(str, files)):
        again = dp.place(one, other, method="heft")
        assert again.plan.ops == result.plan.ops
        assert again.plan.transfers == result.plan.transfers


def test_a_job_is_captured() -> None:
    made = dp.place(JOB, "cpu-2core", method="heft")
    assert made.plan.graph.structure_sha256 == dp.capture(JOB).structure_sha256


def test_options_by_name(result: dp.Result) -> None:
    paper = dp.place(result.plan.graph, "dgx1-v100-2gpu", "paper", method="heft").plan.options
    assert paper == dp.Options.paper()
    made = dp.place(result.plan.graph, "dgx1-v100-2gpu", {"memory": "sum"}, method="heft")
    assert made.plan.options == dp.Options(memory="sum")
    with pytest.raises(dp.InputError, match="options is 'papers'"):
        dp.place("inception_v3-infer", "dgx1-v100-2gpu", "papers")


def test_results_and_files_stand_for_their_plan(result: dp.Result, tmp_path: Path) -> None:
    path = result.save(tmp_path / "plan.json")
    assert path == tmp_path / "plan.json"
    for subject in (result, result.plan, path, str(path)):
        assert dp.explain(subject, budget_s=0).limits_s == dp.explain(result.plan, budget_s=0).limits_s
        assert dp.violations(subject) == ()
    assert dp.load_plan(path).ops == result.plan.ops


def test_a_run_stands_for_the_step_that_it_predicted(result: dp.Result) -> None:
    measured = replace(result.plan, ops=result.plan.ops[::-1])
    assert plan_of(dp.Run(report=None, predicted=result.plan, measured=measured)) is result.plan  # type: ignore[arg-type]


def test_pins_and_a_plan_to_begin_with(tmp_path: Path) -> None:
    graph = dp.OpGraph([dp.Op(name, "mm", 1e-3, module=f"net.{name}") for name in "abcd"])
    machine = dp.Topology([dp.Device("d0"), dp.Device("d1")], links=[dp.Link("d0", "d1", 1e9)])
    made = dp.place(graph, machine, pins={"net.a": "d1", "b": "d1"}, colocate=["c, d"], time_limit_s=2)
    assert made.plan.placement == {"a": "d1", "b": "d1", "c": "d0", "d": "d0"}
    path = made.save(tmp_path / "plan.json")
    for start in (made, made.plan, path):
        again = dp.place(graph, machine, warm_start=start, time_limit_s=2)
        assert again.plan.makespan_s <= made.plan.makespan_s
        assert "warm_start" in again.plan.provenance
    with pytest.raises(dp.InputError, match=r"pin 'a' is not understood; write OP=DEVICE"):
        dp.place(graph, machine, pins=["a"])


def test_devices_follow_from_the_types_of_the_plan() -> None:
    def planned(*types: str) -> list[str]:
        devices = [dp.Device(f"d{place}", kind) for place, kind in enumerate(types)]
        return default_devices(SimpleNamespace(topology=dp.Topology(devices)))  # type: ignore[arg-type]

    assert planned("cpu-core", "cpu-core") == ["cpu:0", "cpu:1"]
    assert planned("V100", "cpu-core", "V100") == ["cuda:0", "cpu:0", "cuda:1"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dp.place("abacus", "cpu-2core"), r"no graph file 'abacus'; .* ships: inception_v3-infer, "),
        (lambda: dp.place(JOB, "cpu-2core", time_limit_s="ten"), "time_limit_s: 'ten' is not a number with a unit"),
        (
            lambda: dp.apply(JOB, dp.load_graph("inception_v3-infer")),
            r"plan is of type OpGraph; give a Plan, a Result \(dp.place",
        ),
        (
            lambda: dp.place("inception_v3-infer", "cpu-2core", calibration=5),
            r"calibration: 5 \(int\) is given; it must be a tuple of paths of files",
        ),
        (lambda: dp.hybrid(JOB, "cpu-2core", 4, {1: 4}), r"devices is 4; topology 'cpu-2core' has 2: join copies"),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_can(call, message: str) -> None:
    with pytest.raises(dp.InputError, match=message):
        call()


def test_hybrid_takes_epochs_as_a_file_or_a_table(tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    path.write_text(json.dumps({"format": "dlplacer.epochs/1", "epochs": {"1": 4, "4": 6}}))
    given = ("inception_v3-train", "dgx1-v100-4gpu", 4)
    by_file, by_table = (dp.hybrid(*given, epochs, speedups={2: 1.7}) for epochs in (path, {1: 4, 4: 6}))
    assert by_file.to_dict() == by_table.to_dict()
    path.write_text(json.dumps({"format": "dlplacer.epochs/1", "epochs": {"1": 4}, "mini_batch": 64}))
    with pytest.raises(dp.InputError, match="the epochs are for mini-batches of 64, the graph is for 32"):
        dp.hybrid(*given, path, speedups={2: 1.7})
    joined = dp.hybrid("inception_v3-train", "dgx1-v100-4gpu", 8, {1: 4, 8: 9}, speedups={2: 1.7}, network="12.5 GB/s")
    assert len(joined.budgets) == 8
    assert joined.to_dict() == dp.hybrid(*given[:2], 8, {1: 4, 8: 9}, speedups={2: 1.7}, network=12.5e9).to_dict()
