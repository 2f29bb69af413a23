"""Mutation tests: each mutant is a small mistake in the package that the tests nearest to it must notice.

From the repository's root, with the environment's Python::

    python tests/mutants/run.py
    python tests/mutants/run.py --only bounds --workers 1

Every worker makes its mutants one at a time in a copy of the package of its own; the working tree stays as it is. The
tests run first without any mutant, as a test that fails anyway kills nothing. Tests that take more than ten minutes
count as failed: a mutant that waits for ever is noticed. Exit status 1: a mutant survived. A mutant whose text is no
longer in its file is an error.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.by_hand import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("dlplacer", "graphs", "topologies", "tests", "pyproject.toml")
_LIMIT_S = 600.0


def copy_of_tree(folder: Path) -> Path:
    """A folder with what the tests need."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def tests_pass(tree: Path, tests: Sequence[str]) -> bool:
    """Whether the tests pass on the package of a tree; False also where they take too long.

    Raises
    ------
    RuntimeError
        If pytest could not run them, as where a file is missing.
    """
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def mutated(text: str, mutant: Mutant) -> str:
    """The text with the mutant in place of what it replaces.

    Raises
    ------
    ValueError
        If what it replaces is not there exactly once.
    """
    count = text.count(mutant.text)
    if count != 1:
        raise ValueError(f"{mutant.file}: the text of mutant {mutant.name!r} occurs {count} times; correct the mutant")
    return text.replace(mutant.text, mutant.replacement)


def is_killed(tree: Path, mutant: Mutant) -> bool:
    """Whether the nearest tests fail on the mutant; the tree is as before afterwards."""
    path = tree / "dlplacer" / mutant.file
    before = path.read_text(encoding="utf-8")
    path.write_text(mutated(before, mutant), encoding="utf-8")
    try:
        return not tests_pass(tree, mutant.tests)
    finally:
        path.write_text(before, encoding="utf-8")


def run(chosen: Sequence[Mutant], workers: int) -> list[Mutant]:
    """The mutants that survive; prints one line for each.

    Raises
    ------
    RuntimeError
        If the tests fail without a mutant.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            trees.put(copy_of_tree(Path(folder) / str(number)))

        def on_some_tree(mutant: Mutant | None, tests: Sequence[str]) -> bool:
            tree = trees.get()
            try:
                return tests_pass(tree, tests) if mutant is None else is_killed(tree, mutant)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(workers) as pool:
            places = sorted({test for mutant in chosen for test in mutant.tests})
            for place, passed in zip(places, pool.map(lambda place: on_some_tree(None, [place]), places), strict=True):
                if not passed:
                    raise RuntimeError(f"tests/{place} fails without any mutant")
            survivors = []
            killed = pool.map(lambda mutant: on_some_tree(mutant, mutant.tests), chosen)
            for mutant, was_killed in zip(chosen, killed, strict=True):
                print(f"{'killed  ' if was_killed else 'SURVIVED'}  {mutant.file}: {mutant.name}", flush=True)
                if not was_killed:
                    survivors.append(mutant)
    return survivors


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutants; 1 if one survives, else 0."""
    parser = argparse.ArgumentParser(description="Runs the nearest tests on every mutant of the package.")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose file or name holds this text")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="mutants at a time (2)")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if given.only in f"{mutant.file}: {mutant.name}"]
    for mutant in chosen:
        mutated((ROOT / "dlplacer" / mutant.file).read_text(encoding="utf-8"), mutant)
    survivors = run(chosen, given.workers)
    share = len(survivors) / len(chosen) if chosen else 0.0
    print(f"\n{len(chosen)} mutants, {len(survivors)} survived: {share:.1%}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
