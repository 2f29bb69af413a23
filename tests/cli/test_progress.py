"""Progress: a live line on a terminal, a line every ten seconds elsewhere, silence with -q and in short commands."""

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

ON_TERMINAL = """
import sys, time
from dlplacer.cli import streams
streams.FIRST_AFTER_S = 0.0
with streams.progress("working", limit_s=60) as show:
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
