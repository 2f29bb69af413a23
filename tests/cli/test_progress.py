"""Progress: what its line says; silence where stderr is no terminal."""

import pytest

from dlplacer.cli.streams import _Line, progress


def test_the_line_says_what_is_done_and_how_long_it_takes() -> None:
    line = _Line("solving", 60.0)
    assert str(line) == "solving (0:00:00 of about 0:01:00)"
    line.show(3, 12)
    assert str(line) == "solving: 3 of 12 (0:00:00 of about 0:01:00)"


def test_a_file_gets_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as show:
        show("halfway")
    assert capsys.readouterr() == ("", "")
