"""The documentation's snippets of training on many devices run as printed, each in processes of its own."""

import re
import sys
from pathlib import Path

import pytest
from scripts import Ended, run_as_ranks

_PAGE = Path(__file__).parent.parent / "docs" / "howto" / "many_devices.md"
_SNIPPETS = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.S)


def _run(snippet: str, folder: Path, ranks: int = 1) -> list[str]:
    """What every rank prints."""
    script = folder / "train.py"
    script.write_text(snippet)
    found: list[Ended] = run_as_ranks(ranks, script, folder=folder)
    assert [done.returncode for done in found] == [0] * ranks, found
    return [done.stdout for done in found]


def test_there_is_one_for_each_method() -> None:
    names = ("ternary_hook", "easgd", "plan_groups")
    assert len(_SNIPPETS) == len(names)
    assert all(name in snippet for name, snippet in zip(names, _SNIPPETS, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="gloo's loopback is tried on Linux")
def test_ternary_gradients(tmp_path: Path) -> None:
    ratios = [re.fullmatch(r"([\d.]+) times fewer bytes\n", said) for said in _run(_SNIPPETS[0], tmp_path, 2)]
    assert all(ratio is not None and float(ratio[1]) > 10 for ratio in ratios)


def test_elastic_averaging(tmp_path: Path) -> None:
    assert _run(_SNIPPETS[1], tmp_path) == [""]


def test_planned_groups(tmp_path: Path) -> None:
    (said,) = _run(_SNIPPETS[2], tmp_path)
    promised = re.search(r"# (\[.*\])", _SNIPPETS[2])
    assert promised is not None
    assert said.strip() == promised[1]
