"""Old versions of what is kept are removed, and none that a process still uses."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from dlplacer.solvers.local_search import cache_folders
from dlplacer.solvers.local_search.cache_folders import used_folder

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def own_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folders, "_held", [])


def name_of(number: int) -> str:
    return f"{number:016x}"


def used_in_the_past(parent: Path, number: int, age_s: float, *, marked: bool = True) -> Path:
    """A folder with code in it whose process has ended."""
    folder = parent / name_of(number)
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "moves.nbi").write_text("machine code")
    if marked:
        (folder / ".used").touch()
    then = time.time() - age_s
    os.utime(folder, (then, then))
    return folder


def names(parent: Path) -> set[str]:
    return {entry.name for entry in parent.iterdir()}


def test_those_used_last_stay(tmp_path: Path) -> None:
    for number in range(6):
        used_in_the_past(tmp_path, number, age_s=100.0 * (number + 1))
    used_folder(tmp_path, name_of(4), most=3)
    assert names(tmp_path) == {name_of(number) for number in (4, 0, 1)}
    used_folder(tmp_path, name_of(9), most=3)
    assert names(tmp_path) == {name_of(number) for number in (9, 4, 0)}


def test_a_folder_that_a_process_uses_stays_until_it_ends(tmp_path: Path) -> None:
    began, ends = FORK.Event(), FORK.Event()

    def use() -> None:
        used_folder(tmp_path, name_of(1))
        began.set()
        ends.wait(60)
        os._exit(0)

    process = FORK.Process(target=use, daemon=True)
    process.start()
    try:
        assert began.wait(60)
        os.utime(tmp_path / name_of(1), (0.0, 0.0))
        used_folder(tmp_path, name_of(2), most=1)
        assert names(tmp_path) == {name_of(1), name_of(2)}
    finally:
        ends.set()
        process.join(60)
    used_folder(tmp_path, name_of(3), most=1)
    assert name_of(1) not in names(tmp_path)
