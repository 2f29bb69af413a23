"""Strict reading of JSON, atomic writing, and which file a name means."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.files.load import locate
from dlplacer.files.text import read_json, render_json, write_json, write_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def mistakes_of(tmp_path: Path, content: bytes | str) -> list[str]:
    path = tmp_path / "it.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileFormatError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: {len(caught.value.mistakes)} mistake")
    assert caught.value.where == str(path)
    return list(caught.value.mistakes)


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("", "line 1, column 1: Expecting value; the file must be JSON"),
        ("hello", "line 1, column 1: Expecting value; the file must be JSON"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6: Expecting ':' delimiter; the file must be JSON"),
        ("{} {}", "line 1, column 4: Extra data; the file must be JSON"),
        (b'{"a": "\xe9"}', "byte 7: not UTF-8 text; save the file as UTF-8"),
        ('{"a": NaN}', "NaN: every number must be finite"),
        ('{"a": [0, {"b": -Infinity}]}', "-Infinity: every number must be finite"),
        ('{"a": 1, "b": 2, "a": 3}', "a: given twice in one object; remove one"),
    ],
)
def test_what_is_wrong_with_a_text(tmp_path: Path, content: bytes | str, mistake: str) -> None:
    assert mistakes_of(tmp_path, content) == [mistake]


def test_what_python_does_not_read(tmp_path: Path) -> None:
    assert mistakes_of(tmp_path, "[" * 100_000) == ["the file: nested too deeply; mend it"]
    assert mistakes_of(tmp_path, "9" * 5000) == ["the file: a number of thousands of digits; mend it"]


@pytest.mark.parametrize("name", ["missing.json", ".", "x" * 5000, "missing/it.json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: [A-Z]"):
        read_json(tmp_path / name)


@given(JSON)
def test_rendered_json_reads_back(value: Any) -> None:
    assert json.loads(render_json(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x", Path("x")])
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InputError, match=r"cannot write .*it\.json: .*; JSON holds finite numbers, texts, lists and"):
        write_json(tmp_path / "it.json", {"meta": {"a": [value]}})
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_the_file_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "it.txt"
    path.write_text("a much longer text than the new one")
    path.chmod(0o640)
    write_text(path, "new é")
    assert path.read_bytes() == "new é".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def failing(_: Any, *__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(InputError, match=r"cannot write .*it\.txt: No space left on device; choose another path"):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link, dangling = tmp_path / "real" / "it.txt", tmp_path / "link.txt", tmp_path / "dangling.txt"
    target.write_text("old")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "real" / "other.txt")
    write_text(link, "new")
    write_text(dangling, "other")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert target.read_text() == "new"
    assert (tmp_path / "real" / "other.txt").read_text() == "other"


@pytest.mark.parametrize("name", ["dgx1-v100-2gpu", "dgx1-v100-2gpu.json", "topologies/dgx1-v100-2gpu.json"])
def test_bare_names_mean_files_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = locate(name, "topology")
    assert path.is_file()
    assert path.name == "dgx1-v100-2gpu.json"


@pytest.mark.parametrize("name", ["nowhere", "../cpu-2core", "", ".", "x" * 5000, "a\0b"])
def test_a_name_of_no_file_is_refused_with_those_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no topology file .*one that ships: cpu-2core, "):
        locate(name, "topology")
