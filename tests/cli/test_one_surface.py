"""The command line as a view of `dlplacer`, by advise and groups: the same options, texts and values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dlplacer as dp
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


def test_minibatch_tries_batches_and_reads_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs = tmp_path / "epochs.json"
    table = {"format": "dlplacer.epochs/1", "by": "batch", "mini_batch": 4, "epochs": {"4": 10, "16": 40}}
    epochs.write_text(json.dumps(table))
    command = ("advise", "minibatch", "dlplacer.models:mlp", "dgx1-v100-2gpu", "--batch-sizes", "4,16,64")
    found = answer(capsys, *command, "--dataset-size", "64", "--epochs", str(epochs))
    by_batch = {plan["batch"]: plan for plan in found["batches"]}
    assert [by_batch[size]["epochs"] for size in (4, 16, 64)] == [10, 40, None]
    assert found["batches"][-1]["batch"] == 64
    assert "not known to converge" in by_batch[64]["reason"]


def test_groups(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "groups", "inception_v3-train", "pcie-4gpu", "--direction", "backward", "--cap", "25 MiB")
    assert found["cuts"][-1] == sum(len(group) for group in found["groups"])
    assert found["makespan_s"] <= min(policy["makespan_s"] for policy in found["policies"].values()) * 1.02
    assert max(found["group_bytes"]) <= 25 * 2**20
    assert found["collective"] == "all-reduce"
    assert [cap * 2**20 for cap in found["bucket_cap_mb_list"]] == found["group_bytes"][::-1]
    assert main(["groups", "inception_v3-train", "pcie-4gpu"]) == 0
    assert "optimal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "groups inception_v3-train pcie-4gpu --cap 25MiB",
            lambda: dp.groups("inception_v3-train", "pcie-4gpu", cap_bytes="25 MiB"),
        ),
        (
            "hybrid inception_v3-train dgx1-v100-2gpu --devices 4 --scaling-efficiency 1 --speedup 2=1.3 --speedup 4=2",
            lambda: dp.hybrid("inception_v3-train", "dgx1-v100-2gpu", 4, scaling_efficiency=1, speedups={2: 1.3, 4: 2}),
        ),
    ],
)
def test_a_command_prints_the_value_of_the_function(
    words: str, call: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--json"]) == 0
    value = call()
    expected = value if isinstance(value, dict) else value.to_dict()
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


def test_the_same_texts_are_read_in_python_and_on_the_command_line() -> None:
    by_text = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods="heft, list", time_limit_s="1min")
    by_value = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods=["heft", "list"], time_limit_s=60)
    assert [row.makespan_s for row in by_text.rows] == [row.makespan_s for row in by_value.rows]
