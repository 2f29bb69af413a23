"""Where machine code is kept."""

from pathlib import Path
from typing import Any

import numba
import pytest

from dlplacer.solvers.local_search import kept_code, machine_code


def doubled(value: int) -> int:
    return 2 * value


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uncached = kept_code.code_folder.__wrapped__
    monkeypatch.setattr(kept_code, "code_folder", uncached)
    monkeypatch.setattr(machine_code, "code_folder", uncached)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def kept(function: Any) -> list[Path]:
    assert function(21) == 42
    return list(Path(function.stats.cache_path).glob("*.nbc"))


def test_every_version_of_the_code_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    (first,) = kept(compiled(doubled))
    assert first.is_relative_to(tmp_path / "dlplacer")
    assert kept_code.is_kept(f"{Path(__file__).stem}.doubled")
    assert not kept_code.is_kept(f"{Path(__file__).stem}.double")
    assert before == numba.config.CACHE_DIR  # type: ignore[attr-defined]
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "arrays.py").write_text("IS_SOURCE = 1")
    monkeypatch.setattr(kept_code, "__file__", str(changed / "kept_code.py"))
    (second,) = kept(compiled(doubled))
    assert second.relative_to(tmp_path).parts[1] != first.relative_to(tmp_path).parts[1]


def test_without_a_compiler_kernels_are_plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert compiled(doubled)(21) == inner(doubled)(21) == 42
