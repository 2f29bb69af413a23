"""Progress: a live line on a terminal, a line every ten seconds elsewhere, silence with -q and in short commands."""

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlplacer.cli.output import progress as module
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.verbosity import NORMAL, set_verbosity


@pytest.fixture(autouse=True)
def normal() -> Iterator[None]:
    yield
    set_verbosity(NORMAL)


def test_lines_tell_elapsed_and_expected_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.02)
    written = []
    with progress("working", limit_s=90) as show:
        for text, share in (("first", None), ("none", 0.0), ("second", 0.5)):
            show(text, share)
            until = time.monotonic() + 20
            while text not in "".join(written) and time.monotonic() < until:
                time.sleep(0.01)
                written.append(capsys.readouterr().err)
    lines = "".join(written).splitlines()
    assert any(re.fullmatch(r"dlplacer: working: first \(\d+ s of about 1 min 30 s\)", line) for line in lines)
    # Half is done in a moment, so the rest is expected in a moment too: the share tells more than the limit.
    assert any(re.fullmatch(r"dlplacer: working: second \(\d+ s of about \d+ s\)", line) for line in lines)


ON_TERMINAL = """
import sys, time
from dlplacer.cli.output import progress
progress.FIRST_AFTER_S = 0.0
with progress.progress("working", limit_s=60) as show:
    show("halfway")
    print("a result", flush=True)
    while not sys.stdin.readline():
        pass
print("after", file=sys.stderr)
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_a_terminal_gets_a_line_that_goes_away(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        text=True,
    )
    os.close(theirs)
    seen = b""
    try:
        until = time.monotonic() + 120
        while b"working: halfway (" not in seen and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 4096)
        assert re.search(rb"working: halfway \(\d+ s of about 1 min 00 s\)", seen), seen
        out, _ = process.communicate("go\n", timeout=120)
        while select.select([ours], [], [], 1)[0]:
            try:
                chunk = os.read(ours, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert out == "a result\n", "results go to stdout, whatever the line does"
    assert seen.rstrip().endswith(b"after")
    assert b"\x1b[2K" in seen, "the line is erased"
