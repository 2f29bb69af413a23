"""Old versions of what is kept are removed, and none that a process still uses."""

import multiprocessing
import os
import shutil
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


def test_what_is_no_folder_of_a_version_is_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / "settings", tmp_path / "0123456789abcdeg", tmp_path / "0123"]
    for other in others:
        other.mkdir()
    (tmp_path / name_of(7)).write_text("a file")
    used_in_the_past(tmp_path, 1, age_s=9.0)
    used_folder(tmp_path, name_of(2), most=1)
    assert names(tmp_path) == {*(other.name for other in others), name_of(7), name_of(2)}


def test_a_folder_without_a_mark_is_removed_after_a_day(tmp_path: Path) -> None:
    used_in_the_past(tmp_path, 1, age_s=3600.0, marked=False)
    used_in_the_past(tmp_path, 2, age_s=90000.0, marked=False)
    used_folder(tmp_path, name_of(3), most=1)
    assert names(tmp_path) == {name_of(1), name_of(3)}


def test_what_a_killed_process_left_half_removed_goes_too(tmp_path: Path) -> None:
    (tmp_path / f".removed-{name_of(1)}-77" / "kernels").mkdir(parents=True)
    used_folder(tmp_path, name_of(2))
    assert names(tmp_path) == {name_of(2)}


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


def test_processes_at_once_never_lose_the_folder_that_they_use(tmp_path: Path) -> None:
    """Every process uses some folders in turn, where one may stay: what it has written is there until it ends."""

    def use(seed: int) -> None:
        for turn in range(40):
            while cache_folders._held:
                os.close(cache_folders._held.pop())
            folder = used_folder(tmp_path, name_of((seed + turn) % 5), most=1)
            assert folder is not None
            mine = folder / f"{seed}-{turn}"
            mine.write_text("code")
            time.sleep(0.001)
            assert mine.read_text() == "code"
        os._exit(0)

    processes = [FORK.Process(target=use, args=(seed,), daemon=True) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4


def test_a_folder_removed_between_two_looks_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = used_in_the_past(tmp_path, 1, age_s=9.0)
    mkdir = os.mkdir

    def removed_once_seen(path: Path, mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileExistsError:
            shutil.rmtree(path)
            raise

    monkeypatch.setattr(os, "mkdir", removed_once_seen)
    assert used_folder(tmp_path, name_of(1)) == folder
    assert (folder / ".used").exists()


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / name_of(1)).write_text("a file")
    with pytest.raises(NotADirectoryError):
        used_folder(tmp_path, name_of(1))


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folders, "_locks", lambda: None)
    used_in_the_past(tmp_path, 1, age_s=1e6)
    assert used_folder(tmp_path, name_of(2), most=1) == tmp_path / name_of(2)
    assert names(tmp_path) == {name_of(1), name_of(2)}
