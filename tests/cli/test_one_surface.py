"""The command line is a view of `dlplacer`: its options are parameters of a function, and print the same values."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import dlplacer as dp
from dlplacer.cli.main import main


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "groups inception_v3-train pcie-4gpu --cap 25MiB",
            lambda: dp.groups("inception_v3-train", "pcie-4gpu", cap_bytes="25 MiB"),
        ),
        ("advise gpus --efficiency 0.8 --gpus 4", lambda: dp.advise_gpus(efficiency=0.8, gpus=4)),
        (
            "hybrid inception_v3-train dgx1-v100-2gpu --devices 4 --scaling-efficiency 1 --speedup 2=1.3 --speedup 4=2",
            lambda: dp.hybrid("inception_v3-train", "dgx1-v100-2gpu", 4, scaling_efficiency=1, speedups={2: 1.3, 4: 2}),
        ),
        (
            "advise minibatch dlplacer.models:mlp dgx1-v100-2gpu --batch-sizes 4,8",
            lambda: dp.advise_minibatch("dlplacer.models:mlp", "dgx1-v100-2gpu", batch_sizes=[4, 8]),
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
