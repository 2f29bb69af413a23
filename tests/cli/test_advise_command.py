"""advise and groups on the command line."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "advise", "gpus", "--overhead", "0.1", "--speedup", "3")
    assert found["gpus"] == 4
    assert found["speedup"] == pytest.approx(3.142857)
    assert answer(capsys, "advise", "gpus", "--efficiency", "0.8", "--gpus", "4") == {
        "overhead_ratio": pytest.approx(1 / 11)
    }
    assert answer(capsys, "advise", "gpus", "--overhead", "0", "--gpus", "8")["speedup_ceiling"] is None


def test_an_impossible_speedup_names_the_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "gpus", "--overhead", "0.1", "--speedup", "12"]) == 3
    assert "11x" in capsys.readouterr().err


def test_servers_and_loaders(capsys: pytest.CaptureFixture[str]) -> None:
    servers = ("advise", "servers", "--load", "0.25 GB", "--rate", "1 GB/s", "--compute", "2 s")
    assert answer(capsys, *servers, "--workers", "8") == {"servers": 2, "transfer_s": 2.0, "compute_s": 2.0}
    assert answer(capsys, *servers)["loaders"] == 1
    assert main([*servers, "--workers", "8"]) == 0
    assert "servers" in capsys.readouterr().out


def test_minibatch_of_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "advise", "minibatch", "inception_v3-train", "dgx1-v100-2gpu", "--dataset-size", "1281167")
    (plan,) = found["batches"]
    assert plan["batch"] == 32
    assert plan["training_s"] == pytest.approx(40037 * plan["step_s"])


def test_minibatch_tries_batches_and_reads_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs = tmp_path / "epochs.json"
    table = {"format": "dlplacer.epochs/1", "by": "batch", "mini_batch": 4, "epochs": {"4": 10, "16": 40}}
    epochs.write_text(json.dumps(table))
    command = ("advise", "minibatch", "dlplacer.models:mlp", "dgx1-v100-2gpu", "--batch-sizes", "4,16,64")
    found = answer(capsys, *command, "--dataset-size", "64", "--epochs", str(epochs))
    by_batch = {plan["batch"]: plan for plan in found["batches"]}
    assert [by_batch[size]["epochs"] for size in (4, 16, 64)] == [10, 40, None]
    assert found["batches"][-1]["batch"] == 64
    assert "nothing is known" in by_batch[64]["reason"]


def test_without_a_data_set_batches_are_ranked_by_time_per_sample(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("advise", "minibatch", "dlplacer.models:mlp", "dgx1-v100-2gpu", "--batch-sizes", "4,64,16")
    found = answer(capsys, *command)["batches"]
    assert [plan["batch"] for plan in found] == [64, 16, 4]
    assert [plan["training_s"] for plan in found] == [None] * 3


def test_a_graph_that_does_not_tell_its_mini_batch_is_not_taken_for_one_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "graph.json"
    nodes = [{"id": "op", "kind": "op", "time_s": 1}, {"id": "back", "kind": "op", "time_s": 1, "phase": "backward"}]
    content = {"format": "dlplacer.graph/1", "name": "mine", "nodes": nodes}
    graph.write_text(json.dumps(content))
    command = ["advise", "minibatch", str(graph), "dgx1-v100-2gpu", "--dataset-size", "64"]
    assert main(command) == 2
    assert "graph 'mine' does not say how many samples a step takes" in capsys.readouterr().err
    graph.write_text(json.dumps(content | {"capture": {"args": [{"shape": [16, 3]}]}}))
    (plan,) = answer(capsys, *command)["batches"]
    assert (plan["batch"], plan["training_s"]) == (16, 8)


def test_groups(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "groups", "inception_v3-train", "pcie-4gpu", "--direction", "backward", "--cap", "25 MiB")
    assert found["cuts"][-1] == sum(len(group) for group in found["groups"])
    assert found["makespan_s"] <= min(policy["makespan_s"] for policy in found["policies"].values()) * 1.02
    assert max(found["group_bytes"]) <= 25 * 2**20
    assert found["collective"] == "all-reduce"
    assert [cap * 2**20 for cap in found["bucket_cap_mb_list"]] == found["group_bytes"][::-1]
    assert main(["groups", "inception_v3-train", "pcie-4gpu"]) == 0
    assert "optimal groups" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advise", "gpus"], "advise gpus needs two of its figures"),
        (["advise", "gpus", "--overhead", "-1", "--gpus", "2"], "overhead ratio R is -1"),
        (["advise", "servers", "--load", "8 Mbit", "--rate", "1 GB/s", "--compute", "1 s"], "8 Mbit"),
        (["advise", "minibatch", "inception_v3-train", "dgx1-v100-2gpu", "--batch-sizes", "8"], "is a graph file"),
        (["advise", "minibatch", "inception_v3-train", "dgx1-v100-2gpu", "--device", "tpu"], "it has gpu0, gpu1"),
        (["advise", "minibatch", "dlplacer.models:mlp", "dgx1-v100-2gpu", "--batch-sizes", "a"], "has 'a'"),
        (["advise", "minibatch", "inception_v3-infer", "dgx1-v100-2gpu"], "no backward pass"),
        (["groups", "inception_v3-infer", "dgx1-v100-2gpu", "--direction", "backward"], "has no backward ops"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
