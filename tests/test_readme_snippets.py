"""The README's snippets of training on many devices run as printed, each in processes of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_README = Path(__file__).parent.parent / "README.md"
_LIMIT_S = 150
_SNIPPETS = re.findall(r"```python\n(.*?)```", _README.read_text().split("## Training on many devices")[1], re.S)


def _run(snippet: str, folder: Path, *launcher: str) -> str:
    script = folder / "train.py"
    script.write_text(snippet)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if launcher else alone)}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_one_for_each_method() -> None:
    names = ("ternary_hook", "easgd", "run_async", "plan_groups")
    assert len(_SNIPPETS) == len(names)
    assert all(name in snippet for name, snippet in zip(names, _SNIPPETS, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="gloo's loopback is tried on Linux")
def test_ternary_gradients(tmp_path: Path) -> None:
    said = _run(_SNIPPETS[0], tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ratios = [float(text) for text in re.findall(r"([\d.]+) times fewer bytes", said)]
    assert len(ratios) == 2
    assert min(ratios) > 10


def test_elastic_averaging(tmp_path: Path) -> None:
    _run(_SNIPPETS[1], tmp_path)


def test_asynchronous_workers(tmp_path: Path) -> None:
    assert "weight" in _run(_SNIPPETS[2], tmp_path)
    assert (tmp_path / "events.json").exists()


def test_planned_groups(tmp_path: Path) -> None:
    said = _run(_SNIPPETS[3], tmp_path)
    promised = re.search(r"# (\[.*\])", _SNIPPETS[3])
    assert promised is not None
    assert said.strip() == promised[1]
