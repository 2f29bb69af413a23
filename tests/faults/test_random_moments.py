"""Commands that are ended at random moments: what is left of them, and of the files that they write.

After a Ctrl-C (once, twice, or to all processes, as a terminal sends it), a SIGTERM or a SIGKILL between its start and
its usual end a command ends within five seconds, or when it would have ended anyway; no process of its session is left;
its exit code is documented: 130 after Ctrl-C (0 where there was a plan to keep), that of the signal after the others;
it prints no traceback, and at most one line for the Ctrl-C; its file is whole or not there, and nothing lies beside it.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 5.0
"""For a process to end once it was asked to."""
DLPLACER = (sys.executable, "-m", "dlplacer")
MODEL = "dlplacer.models:mlp"
RUN = ("run", "PLAN", MODEL, "--batch-size", "4", "--steps", "2", "--html", "OUT", "--devices")
COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "solve": ("solve", "inception_v3-infer", "cpu-2core", "--time-limit", "2", "-o", "OUT"),
    "capture": ("capture", MODEL, "-o", "OUT"),
    "compare": ("compare", "inception_v3-infer", "cpu-2core", "--methods", "list,heft,single", "--time-limit", "3"),
    "show": ("show", "PLAN", "--html", "OUT"),
    "profile": ("profile", MODEL, "--device", "cpu:0", "-o", "OUT"),
    "run": (*RUN, "cpu:0,cpu:1"),
    "run over ranks": (*RUN, "rank0/cpu:0,rank1/cpu:1"),
}
SIGNALS = [(signal.SIGINT,)] * 5 + [(signal.SIGINT, signal.SIGINT)] * 2 + [(signal.SIGTERM,)] + [(signal.SIGKILL,)] * 2


def command_line(command: str, folder: Path) -> list[str]:
    files = {"PLAN": str(folder / "plan.json"), "OUT": str(folder / "out" / "out")}
    return [*DLPLACER, *(files.get(word, word) for word in COMMANDS[command])]


def running(session: int) -> list[int]:
    """Process ids that still run in a session; those that have ended and were not waited for do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def mistakes_after(
    signals: tuple[signal.Signals, ...], command: str, folder: Path, usual_s: float, draw: random.Random
) -> Iterator[str]:
    """Start a command, send it the signals at a moment, and look at what is left."""
    output, told, to_all = folder / "out" / "out", folder / "told", signals[0] == signal.SIGINT and draw.random() < 0.5
    with told.open("wb") as stream:
        process = subprocess.Popen(
            command_line(command, folder), stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0, usual_s))
    for one in signals:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, one) if to_all else process.send_signal(one)
        time.sleep(0.02)
    try:
        # A solver that was asked to stop ends its phase; on a busy machine everything takes longer.
        process.wait(max(LIMIT_S, 3 * usual_s))
    except subprocess.TimeoutExpired:
        yield "it did not end"
    deadline = time.monotonic() + LIMIT_S
    while running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in running(process.pid):
        yield "one of its processes went on"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code, text = process.wait(30), told.read_text()
    # Nothing of ours can change what Python says while it starts itself: then no frame is ours.
    ours = "/dlplacer/__main__.py" in text or "/dlplacer/__init__.py" in text
    if not ("Traceback" in text and not ours):
        if code not in {0, -signals[0], *([130] if signals[0] == signal.SIGINT else [])}:
            yield f"exit code {code}: {text[-300:]}"
        if "Traceback" in text and code in (0, 1, 130):
            yield f"a traceback: {text[-600:]}"
    if text.count("dlplacer: interrupted") > 1:
        yield "more than one line for one Ctrl-C"
    if {entry.name for entry in output.parent.iterdir()} - {output.name}:
        yield "something is left beside the file"
    if output.exists() and not output.read_text().rstrip().endswith(("}", "</html>")):
        yield "the file is not whole"


@pytest.mark.parametrize(
    ("count", "commands"), [(3, ["version", "solve"]), pytest.param(30, [*COMMANDS], marks=pytest.mark.slow)]
)
def test_random_moments(count: int, commands: list[str], tmp_path: Path) -> None:
    draw = random.Random(count)
    (tmp_path / "out").mkdir()
    if len(commands) == len(COMMANDS):
        made = ("solve", MODEL, "cpu-2core", "--batch-size", "4", "--method", "list", "-o", str(tmp_path / "plan.json"))
        subprocess.run([*DLPLACER, *made], check=True, capture_output=True)
    usual_s = {}
    for command in commands:
        began = time.monotonic()
        subprocess.run(command_line(command, tmp_path), check=True, capture_output=True)
        usual_s[command] = time.monotonic() - began
    for _ in range(count):
        (tmp_path / "out" / "out").unlink(missing_ok=True)
        command, signals = draw.choice(commands), draw.choice(SIGNALS)
        found = [*mistakes_after(signals, command, tmp_path, usual_s[command], draw)]
        assert found == [], (command, signals)
