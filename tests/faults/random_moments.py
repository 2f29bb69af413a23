"""Ends commands at random moments, and looks at what is left: ``python tests/faults/random_moments.py --count 1000``.

Every command runs in a session of its own. After a Ctrl-C (once, twice, or to all processes, as a terminal sends it), a
SIGTERM or a SIGKILL at a moment between its start and its usual end

- it ends within five seconds, or when it would have ended anyway, and no process of its session is left;
- its exit code is documented: 130 after Ctrl-C (0 where there was a plan to keep), that of the signal after the others;
- it prints no traceback, and at most one line for the Ctrl-C;
- the file that it writes is whole or not there, and nothing lies beside it.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 5.0
"""For a process to end once it was asked to."""
_STARTING = b"init_import_site"
_DLPLACER = (sys.executable, "-m", "dlplacer")
_MODEL = "dlplacer.models:mlp"
COMMANDS: dict[str, tuple[str, ...]] = {
    "version": ("--version",),
    "capture": ("capture", _MODEL, "-o", "OUT"),
    "solve": ("solve", "inception_v3-infer", "cpu-2core", "--time-limit", "2", "-o", "OUT"),
    "compare": ("compare", "inception_v3-infer", "cpu-2core", "--methods", "list,heft,single", "--time-limit", "3"),
    "show": ("show", "PLAN", "--html", "OUT"),
    "profile": ("profile", _MODEL, "--device", "cpu:0", "-o", "OUT"),
    "run": ("run", "PLAN", _MODEL, "--batch-size", "4", "--devices", "cpu:0,cpu:1", "--steps", "2", "--trace", "OUT"),
    "hybrid": (
        *("hybrid", "GRAPH", "cpu-2core", "--devices", "4", "--epochs", "EPOCHS"),
        *("--time-limit", "1", "--split", "placement", "--scaling-efficiency", "1"),
    ),
    "run over ranks": (
        *("run", "PLAN", _MODEL, "--batch-size", "4", "--devices", "rank0/cpu:0,rank1/cpu:1", "--steps", "2"),
        *("--trace", "OUT"),
    ),
}


@dataclass(frozen=True)
class Moment:
    """What is done to a command, and when.

    Attributes
    ----------
    signals
        Sent one after another, a moment apart.
    to_all
        Whether all processes of the command get them, as those of a terminal do.
    """

    command: str
    after_s: float
    signals: tuple[signal.Signals, ...]
    to_all: bool

    def __str__(self) -> str:
        names = "+".join(one.name for one in self.signals)
        return f"{self.command} after {self.after_s:.3f} s: {names}{' to all' if self.to_all else ''}"


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes
    ----------
    outcome
        In a word or two, for counting.
    mistakes
        What must not be.
    """

    moment: Moment
    outcome: str
    mistakes: tuple[str, ...]


def drawn(chooser: random.Random, usual_s: dict[str, float]) -> Moment:
    """A random moment of a random command."""
    command = chooser.choice(list(usual_s))
    signals = chooser.choice(
        [(signal.SIGINT,)] * 5 + [(signal.SIGINT, signal.SIGINT)] * 2 + [(signal.SIGTERM,)] + [(signal.SIGKILL,)] * 2
    )
    to_all = signals[0] == signal.SIGINT and chooser.random() < 0.5
    return Moment(command, chooser.uniform(0, usual_s[command]), signals, to_all)


def arguments_of(command: str, plan: Path, output: Path) -> list[str]:
    """The command line, with its files."""
    files = {
        "PLAN": str(plan),
        "OUT": str(output),
        "EPOCHS": str(plan.with_name("epochs.json")),
        "GRAPH": str(plan.with_name("graph.json")),
    }
    return [*_DLPLACER, *(files.get(word, word) for word in COMMANDS[command])]


def processes_of_session(session: int) -> list[int]:
    """Process ids that still run in a session; those that have ended and were not waited for do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def tried(moment: Moment, plan: Path, usual_s: float) -> Ending:
    """Start the command, do what the moment says, and look at what is left."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as told:
        output = Path(folder) / "out"
        process = subprocess.Popen(
            arguments_of(moment.command, plan, output),
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment.after_s)
            for one in moment.signals:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, one) if moment.to_all else process.send_signal(one)
                time.sleep(0.02)
            mistakes = list(_late(process, usual_s))
        finally:
            for pid in processes_of_session(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code = process.wait(30)
        told.seek(0)
        text = told.read()
        mistakes += [*_of_code(code, moment, text), *_of_words(code, text), *_of_files(output)]
    return Ending(moment, f"{moment.signals[0].name}: {code}", tuple(mistakes))


def _late(process: "subprocess.Popen[bytes]", usual_s: float) -> Iterator[str]:
    """Whether it or a process that it started goes on for too long."""
    try:
        # A solver that was asked to stop ends its phase; on a busy machine everything takes longer.
        process.wait(max(LIMIT_S, 3 * usual_s))
    except subprocess.TimeoutExpired:
        yield "it did not end"
    deadline = time.monotonic() + LIMIT_S
    while processes_of_session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left := processes_of_session(process.pid):
        yield f"{len(left)} of its processes went on"


def _of_code(code: int, moment: Moment, text: bytes) -> Iterator[str]:
    number = moment.signals[0]
    documented = {0, -number}  # done before the signal came; what the system answers before dlplacer's first line
    if number == signal.SIGINT:
        documented.add(130)
        if code == 1 and _is_before_ours(text):
            return
    if code not in documented:
        yield f"exit code {code}: {text.decode(errors='replace').strip()[-300:]}"


def _is_before_ours(text: bytes) -> bool:
    """Whether the signal came while Python itself started, which nothing of ours can change: no frame is ours."""
    ours = (b"/dlplacer/__main__.py", b"/dlplacer/__init__.py")
    return _STARTING in text or (b"Traceback" in text and not any(name in text for name in ours))


def _of_words(code: int, text: bytes) -> Iterator[str]:
    if b"Traceback" in text and code in (0, 1, 130) and not _is_before_ours(text):
        yield f"a traceback: {text.decode(errors='replace')[-600:]}"
    if text.count(b"dlplacer: interrupted") > 1:
        yield "more than one line for one Ctrl-C"


def _of_files(output: Path) -> Iterator[str]:
    left = {entry.name for entry in output.parent.iterdir()}
    if left - {output.name}:
        yield f"left beside the file: {', '.join(sorted(left - {output.name}))}"
    if output.exists() and not output.read_text().rstrip().endswith(("}", "</html>")):
        yield "the file is not whole"


def measured(commands: Sequence[str], plan: Path) -> dict[str, float]:
    """Seconds that each command takes when nothing happens to it."""
    found = {}
    for command in commands:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            line = arguments_of(command, plan, Path(folder) / "out")
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(line)} ends with {done.returncode}: {done.stderr}")
            found[command] = time.monotonic() - began
    return found


def plan_file(folder: Path) -> Path:
    """A plan of the model that the commands run; beside it what they read besides."""
    plan, graph = folder / "plan.json", folder / "graph.json"
    epochs = {"format": "dlplacer.epochs/1", "epochs": {"1": 4, "2": 5, "4": 8}, "samples": 64_000, "mini_batch": 4}
    (folder / "epochs.json").write_text(json.dumps(epochs))
    for words in (
        ("capture", _MODEL, "--batch-size", "4", "-o", str(graph)),
        ("profile", _MODEL, "--batch-size", "4", "--device", "cpu:0", "-o", str(graph)),
        ("solve", str(graph), "cpu-2core", "--time-limit", "1", "-o", str(plan)),
    ):
        subprocess.run([*_DLPLACER, *words], check=True, capture_output=True)
    return plan


def random_moments(count: int, seed: int, jobs: int, commands: Sequence[str]) -> list[Ending]:
    """How commands ended at so many random moments."""
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        planned = any({"PLAN", "GRAPH"} & {*COMMANDS[command]} for command in commands)
        plan = plan_file(Path(folder)) if planned else Path(folder) / "plan.json"
        usual_s = measured(commands, plan)
        moments = [drawn(chooser, usual_s) for _ in range(count)]
        endings = []
        for number, ending in enumerate(pool.map(lambda one: tried(one, plan, usual_s[one.command]), moments), 1):
            endings.append(ending)
            for mistake in ending.mistakes:
                print(f"{ending.moment}: {mistake}", flush=True)
            if number % 50 == 0:
                print(f"{number} of {count}", file=sys.stderr, flush=True)
        return endings


def main() -> int:
    """Try, count, and tell; 1 if anything was as it must not be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="moments (1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="commands side by side (2)")
    parser.add_argument("--commands", default=",".join(COMMANDS), metavar="C[,C…]", help="which (all)")
    given = parser.parse_args()
    endings = random_moments(given.count, given.seed, given.jobs, given.commands.split(","))
    wrong = sum(bool(ending.mistakes) for ending in endings)
    print(json.dumps({"moments": len(endings), "wrong": wrong, **Counter(one.outcome for one in endings)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
