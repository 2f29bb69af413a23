"""``dlplacer fit``, ``export`` and ``topology new`` from a model's file to flags."""

import json
from pathlib import Path

import pytest

from dlplacer.cli.main import main
from dlplacer.report.export.targets import TARGETS

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 20,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_a_model_and_words_give_flags(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    words = ["fit", config, "RTX3090, RTX3060", "--objective", "throughput", "--split", "15,5", "--to", "llama.cpp"]
    assert main([*words, "-o", plan]) == 0
    printed = capsys.readouterr().out
    assert "--tensor-split" in printed
    assert "yours" in printed
    assert main(["check", plan]) == 0
    capsys.readouterr()
    assert main(["export", plan, "--to", "vllm"]) == 0
    assert "VLLM_PP_LAYER_PARTITION" in capsys.readouterr().out


def test_json_has_layers_alternatives_and_all_exports(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", config, "RTX3090, RTX3060", "--max-context", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    layers = [layer for device in told["devices"].values() for layer in device["layers"]]
    assert sorted(layers) == list(range(20))
    assert told["exports"].keys() == TARGETS.keys()
    assert told["status"] == "optimal"
    assert told["time_per_token_s"] == pytest.approx(1 / told["tokens_per_s"])
    assert {"name", "fits", "value_s", "max_context"} <= told["alternatives"][0].keys()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["RTX3900"], 2),
        (["GTX1080Ti"], 3),
        (["RTX3090", "--split", "1,1"], 2),
    ],
)
def test_mistakes_have_the_exit_code_of_their_kind(config: str, words: list[str], code: int) -> None:
    assert main(["fit", config, *words, "--context", "100000"]) == code
