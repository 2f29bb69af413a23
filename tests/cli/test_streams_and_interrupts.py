"""Standard streams that are full, closed or without a reader, and Ctrl-C: each ends with a documented exit code."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DLPLACER = f"{sys.executable} -m dlplacer"
SHOWS = "topology show cpu-2core"


def ended(command: str) -> "subprocess.CompletedProcess[str]":
    """A shell command's ending."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("arguments", ["--help", SHOWS, f"{SHOWS} --json"])
def test_stdout_that_is_full_is_reported(arguments: str) -> None:
    done = ended(f"{DLPLACER} {arguments} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("dlplacer: cannot write to stdout: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["--help", SHOWS])
def test_a_reader_that_has_seen_enough_is_no_error(arguments: str) -> None:
    done = ended(f"{DLPLACER} {arguments} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("streams", "code"), [(">&-", 0), ("2>&-", 0)])
def test_closed_streams_take_everything(streams: str, code: int) -> None:
    assert ended(f"{DLPLACER} {SHOWS} {streams}").returncode == code


SLOW_IMPORT = """
import sys, time
mark = sys.argv.pop()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            open(mark, "w").close()
            time.sleep(30)
sys.meta_path.insert(0, Finder())
from dlplacer.__main__ import main
raise SystemExit(main())
"""


def interrupted(process: "subprocess.Popen[str]", mark: Path, signals: int = 1) -> tuple[int, str]:
    """Exit code and stderr of a process that gets Ctrl-C once it has written a mark, again after every line it says.

    Not after some time: two signals that come before the first is answered are one.
    """
    deadline = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.stderr is not None
    with process, contextlib.ExitStack() as at_last:
        at_last.callback(process.kill)
        said = ""
        for _ in range(signals - 1):
            process.send_signal(signal.SIGINT)
            said += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said += process.communicate(timeout=30)[1]
    return process.returncode, said


def test_ctrl_c_while_torch_is_imported(tmp_path: Path) -> None:
    mark = tmp_path / "importing"
    command = [sys.executable, "-c", SLOW_IMPORT, "capture", "dlplacer.models:mlp", str(mark)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert interrupted(process, mark) == (130, "dlplacer: interrupted\n")


ENDS = """
import os, signal, sys
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)
late = Late()
sys.argv = ["dlplacer", "--version"]
from dlplacer.__main__ import main
raise SystemExit(main())
"""


def test_ctrl_c_while_python_takes_its_modules_apart_does_not_undo_what_is_done() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dlplacer ")


STOPS = """
import sys, time, threading
from dlplacer.cli.interruption import end_on_interrupt
from dlplacer.planning.interrupt import stop_on_interrupt
end_on_interrupt()
stop = threading.Event()
with stop_on_interrupt(stop, lambda: print("stopping", file=sys.stderr)):
    open(sys.argv[1], "w").close()
    if sys.argv[2] == "obeys":
        stop.wait()
    else:
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("manner", "signals", "ending"),
    [("obeys", 1, (0, "stopping\n")), ("does not", 2, (130, "stopping\ndlplacer: interrupted\n"))],
)
def test_a_second_ctrl_c_ends_what_the_first_asked_to_stop(
    tmp_path: Path, manner: str, signals: int, ending: tuple[int, str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPS, str(tmp_path / "mark"), manner], stderr=subprocess.PIPE, text=True
    )
    assert interrupted(process, tmp_path / "mark", signals) == ending
