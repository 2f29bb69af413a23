"""The suite's core against the lowest and the highest versions that pyproject.toml promises.

From the repository's root, with any Python::

    python3 tests/versions/run.py
    python3 tests/versions/run.py --only lowest

*lowest*: the oldest Python of the range with ``lowest.txt`` (torch excepted, see there). *highest*: the newest Python
found on the PATH, or among pyenv's, with whatever versions pip finds for it, and without torch: its wheels take
gigabytes, and its highest version is the one that ``make test`` runs. Each has an environment of its own,
``.venv-lowest`` and ``.venv-highest``. Says which versions ran, and fails if an environment cannot be made or a test
fails.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 11)

_CORE = (
    *("tests/core", "tests/files", "tests/check", "tests/machines", "tests/problem", "tests/solvers", "tests/planning"),
    *("tests/report", "tests/data_parallel", "tests/test_package.py"),
    "tests/cli/test_planning_commands.py",
)
_CAPTURE = ("tests/models/test_small.py", "tests/frontend/torch/test_capture_of.py")
_NEEDS_TORCH = (
    *("tests/files/test_mutations.py", "tests/problem/test_dispatch.py", "tests/problem/test_simulate.py"),
    *("tests/planning/coarsen/test_granularity.py", "tests/planning/coarsen/test_granularity_command.py"),
    "tests/planning/hybrid/test_hybrid_example.py",
)
_RUNNERS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
_SHOWN = ("numpy", "scipy", "pandas", "networkx", "ortools", "pydantic", "rich", "lazy-loader", "matplotlib", "torch")


@dataclass(frozen=True)
class Setting:
    """Which Python, what is installed into it, and which tests run."""

    name: str
    python: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]


def version_of(python: str) -> tuple[int, int] | None:
    """The version of an interpreter; None if it does not start, as pyenv's placeholders do not."""
    try:
        done = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
    except OSError:
        return None
    major, _, minor = done.stdout.strip().partition(" ")
    return (int(major), int(minor)) if done.returncode == 0 else None


def interpreters() -> Iterator[tuple[tuple[int, int], str]]:
    """Every Python 3 that starts, with its version: this one, ``python3.x`` on the PATH, and pyenv's."""
    names = [sys.executable, *(f"python3.{minor}" for minor in range(OLDEST[1], 30))]
    names += map(str, sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")))
    for name in names:
        version = version_of(name)
        if version is not None:
            yield version, name


def settings() -> list[Setting]:
    """The lowest and the highest, as far as there are interpreters for them."""
    found = dict(reversed(list(interpreters())))
    if OLDEST not in found:
        raise SystemExit(f"there is no Python {OLDEST[0]}.{OLDEST[1]}: what runs the lowest versions is missing")
    lowest = ("-c", "tests/versions/lowest.txt", "-e", ".[torch,plot,partition,onnx]", *_RUNNERS)
    highest = ("--upgrade", "-e", ".[plot,partition]", *_RUNNERS)
    without = tuple(option for path in _NEEDS_TORCH for option in ("--ignore", path))
    return [
        Setting("lowest", found[OLDEST], lowest, (*_CORE, *_CAPTURE)),
        Setting("highest", found[max(found)], highest, (*_CORE, *without)),
    ]


def passes(setting: Setting) -> bool:
    """Whether the tests pass; makes the environment first, and prints what is in it."""
    folder = ROOT / f".venv-{setting.name}"
    python = str(folder / "bin" / "python")
    quiet = ("--quiet", "--disable-pip-version-check", "--retries", "10", "--timeout", "60")
    subprocess.run([setting.python, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([python, "-m", "pip", "install", *quiet, *setting.packages], cwd=ROOT, check=True)
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    versions = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", listed))
    shown = [f"{name} {versions[name]}" for name in _SHOWN if name in versions]
    print(f"\n{setting.name}: Python {'.'.join(map(str, version_of(python) or ()))}, {', '.join(shown)}", flush=True)
    # Old and new packages deprecate things in each other; that is no mistake of ours.
    options = ("-q", "-m", "not slow", "-n", "2", "--dist", "loadgroup", "-W", "default::DeprecationWarning")
    return subprocess.run([python, "-m", "pytest", *options, *setting.tests], cwd=ROOT).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the settings; 1 if one fails, else 0."""
    parser = argparse.ArgumentParser(description="Runs the suite's core on the lowest and the highest versions.")
    parser.add_argument("--only", choices=("lowest", "highest"), help="one of the two")
    given = parser.parse_args(arguments)
    outcome = {
        f"{setting.name} (Python {'.'.join(map(str, version_of(setting.python) or ()))})": passes(setting)
        for setting in settings()
        if given.only in (None, setting.name)
    }
    for name, passed in outcome.items():
        print(f"{name}: {'passed' if passed else 'FAILED'}")
    return 0 if all(outcome.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
